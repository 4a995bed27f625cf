"""With batch invariance an answer is the same bit for bit, tokens and log-probabilities, whichever tier its blocks come
from and whatever is in the batch."""

import random

import pytest

from inflight_engine import tier_loads
from tests.engine.disk.test_disk_faults import KIND, TOKEN_BYTES
from tests.engine.disk.test_real_disk import Engine
from tests.engine.execution.tiny_model import VOCAB, make_model
from tests.engine.native.variants import needs_kernels

SIZES = {"block_size": 16, "num_kv_blocks": 16}
PROMPT, *OTHERS = [random.Random(seed).choices(range(VOCAB), k=100) for seed in range(8)]
"""Each of 6 full blocks; host memory has 24."""


def counts(engine):
    """Blocks that were found on the device, and those that came from host memory and from the disk."""
    from_host, from_disk = engine.scheduler.offload.num_loaded, engine.disk.reader.num_loaded
    return engine.scheduler.admission.prefix_hits // SIZES["block_size"] - from_host, from_host, from_disk


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tokens_and_log_probabilities_are_the_same_bits_whichever_tier_has_the_blocks(
    request, tmp_path, monkeypatch, dtype
):
    monkeypatch.setattr(tier_loads, "_LEAST_PATIENCE", 20.0)  # no load is late on a slow machine
    make_model(tmp_path / "model", KIND)
    options = {"model": str(tmp_path / "model"), "dtype": dtype, "device": "cpu", "batch_invariant": True} | SIZES
    computing = Engine(**options, prefix_caching=False, max_num_batched_tokens=7)
    expected = computing.answer([PROMPT], logprobs=5)[0], computing.logprobs[0]
    block_bytes = SIZES["block_size"] * TOKEN_BYTES // (2 if dtype == "bfloat16" else 1)
    engine = Engine(tmp_path / "kv", **options, host_blocks=24, block_bytes=block_bytes)
    request.addfinalizer(engine.close)

    def answer(*beside):
        """Blocks by tier that were found and loaded for the prompt, and for those beside it."""
        before = counts(engine)
        output = engine.answer([PROMPT, *beside], logprobs=5)[0]
        assert (output, engine.logprobs[0]) == expected
        engine.settle()
        return tuple(count - earlier for count, earlier in zip(counts(engine), before, strict=True))

    assert answer() == (0, 0, 0)
    assert answer() == (6, 0, 0)
    for beside in ((), OTHERS[:1]):
        for other in OTHERS[1:4]:
            engine.answer([other])
        on_device, from_host, from_disk = answer(*beside)
        assert from_host > 0 == from_disk
        assert on_device < 6
    for beside in ((), OTHERS[:1]):
        for other in OTHERS[1:]:
            engine.answer([other])
            engine.settle()
        assert answer(*beside)[2] >= 6
    assert engine.disk.num_late == 0

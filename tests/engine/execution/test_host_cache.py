"""Blocks copied out to host memory come back as they were, wherever they come back to."""

import random
from unittest.mock import MagicMock

import pytest
import torch

from inflight_engine.execution import block_copies
from inflight_engine.execution.attention.base import AttentionSpec
from inflight_engine.execution.attention.cpu_native import CpuNativeBackend
from inflight_engine.execution.attention.torch_sdpa import TorchSdpaBackend
from inflight_engine.execution.host_cache import HostCache
from inflight_engine.models.checkpoints.config import DecoderConfig, load_model_config
from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.request import SamplingParams
from tests.engine.execution.driver import Driver
from tests.engine.execution.tiny_model import SWAP_SPACE, make_model, prompts_for, tiny_runner
from tests.engine.native.variants import needs_kernels

BLOCK_SIZE, BLOCKS = 16, 12
CPU = torch.device("cpu")
BACKENDS = [TorchSdpaBackend, pytest.param(CpuNativeBackend, marks=needs_kernels)]
each_backend = pytest.mark.parametrize("kind", BACKENDS, ids=lambda kind: kind.name)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, "llama-wide-heads")
    return load_model_config(resolve(str(folder), "main"))


def filled(kind, config: DecoderConfig, dtype=torch.float32):
    """A backend whose blocks all hold different numbers, and a view of them, the block first."""
    backend = kind(AttentionSpec(config.shape, BLOCKS, BLOCK_SIZE, dtype, dtype, CPU, 4, 64, 64))
    memory = backend._cache.view(torch.uint8)
    memory.random_(generator=torch.Generator().manual_seed(1))
    return backend, memory.movedim(2 if kind is TorchSdpaBackend else 1, 0)


def block_bytes(config: DecoderConfig, dtype=torch.float32):
    return config.shape.kv_bytes_per_token(dtype.itemsize) * BLOCK_SIZE


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_round_trip_is_exact_and_touches_nothing_else(kind, config, dtype):
    backend, blocks = filled(kind, config, dtype)
    host = HostCache(9, BLOCK_SIZE, block_bytes(config, dtype), CPU, backend)
    before = blocks.clone()
    host.copy_out([3, 7, 0, 11], [8, 2, 3, 5])
    assert torch.equal(blocks, before)
    assert host.copy_in([([8, 2, 3, 5], [1, 3, 10, 4])]).tolist() == [0]
    assert torch.equal(blocks[[1, 3, 10, 4]], before[[3, 7, 0, 11]])
    others = [block for block in range(BLOCKS) if block not in (1, 3, 10, 4)]
    assert torch.equal(blocks[others], before[others])


def test_a_gpu_needs_no_host_memory(config, monkeypatch):
    backend, _ = filled(TorchSdpaBackend, config)
    # Stands in for a GPU, whose memory numpy cannot read.
    monkeypatch.setattr(backend, "blocks", lambda: torch.zeros((BLOCKS, 2, 64), dtype=torch.uint8, device="meta"))
    monkeypatch.setattr(block_copies, "_Streams", MagicMock())
    monkeypatch.setattr(torch.cuda, "Stream", MagicMock())
    assert HostCache(0, BLOCK_SIZE, 128, torch.device("cuda"), backend).num_blocks == 0


@each_backend
def test_what_is_copied_out_stays_while_its_block_is_overwritten(kind, config):
    backend, blocks = filled(kind, config)
    host = HostCache(2, BLOCK_SIZE, block_bytes(config), CPU, backend)
    before = blocks[6].clone()
    host.copy_out([6], [1])
    blocks[6] = 9
    host.copy_out([5], [0])
    assert host.copy_in([([1], [2])]).tolist() == [0]
    assert torch.equal(blocks[2], before)


@each_backend
def test_a_block_that_is_not_what_was_copied_out_or_never_was_is_reported(kind, config):
    backend, _ = filled(kind, config)
    host = HostCache(4, BLOCK_SIZE, block_bytes(config), CPU, backend)
    host.copy_out([3, 7, 0], [2, 1, 0])
    assert host.copy_in([([2], [3]), ([3], [4]), ([0, 1], [5, 6])]).tolist() == [0, 1, 0]
    host._blocks[1, 17] ^= 4
    assert host.copy_in([([2, 1], [3, 4]), ([0], [5])]).tolist() == [1, 0]
    host._blocks[2], host._blocks[0] = host._blocks[0].clone(), host._blocks[2].clone()
    assert host.copy_in([([2, 0], [3, 4])]).tolist() == [2]
    host.copy_out([3, 7], [2, 1])
    assert host.copy_in([([2, 1], [3, 4])]).tolist() == [0]


@each_backend
def test_as_many_blocks_must_be_named_on_both_sides(kind, config):
    host = HostCache(2, BLOCK_SIZE, block_bytes(config), CPU, filled(kind, config)[0])
    with pytest.raises(ValueError, match="zip"):
        host.copy_out([1, 2], [0])
    with pytest.raises(ValueError, match="zip"):
        host.copy_in([([1], [2, 3])])


@each_backend
def test_the_measured_rate_is_that_of_the_copies(kind, config, monkeypatch):
    host = HostCache(5, BLOCK_SIZE, block_bytes(config), CPU, filled(kind, config)[0])
    ticks = iter([0.0, 0.5, 1.0, 1.2, 2.0, 2.4])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    assert host.measure_copy_rate(BLOCKS) == pytest.approx(5 * BLOCK_SIZE / 0.2)


def test_memory_is_touched_ahead_on_request_and_not_any_more_once_it_is_given_back(config, monkeypatch):
    steps = []

    class Recorded:
        def __init__(self, cache):
            steps.append(("touch", cache.nbytes))

        def stop(self):
            steps.append("stop")

    monkeypatch.setattr("inflight_engine.execution.host_cache.TouchedAhead", Recorded)
    monkeypatch.setattr("inflight_engine.execution.host_cache.give_back", lambda _: steps.append("give back"))
    size = block_bytes(config)
    host = HostCache(4, BLOCK_SIZE, size, CPU, filled(TorchSdpaBackend, config)[0])
    assert steps == []
    host.touch_ahead()
    host.free()
    assert steps == [("touch", host._blocks.nbytes), "stop", "give back"]
    none = HostCache(0, BLOCK_SIZE, size, CPU, filled(TorchSdpaBackend, config)[0])
    none.touch_ahead()
    assert len(steps) == 3


@each_backend
def test_a_swapped_out_request_continues_as_if_it_had_never_left(kind, tmp_path):
    """Greedy, and drawn: with every block overwritten by others while it is away, at other places afterwards."""
    make_model(tmp_path, "llama-wide-heads")
    blocks = {"block_size": BLOCK_SIZE, "num_kv_blocks": 16, "swap_space": SWAP_SPACE}
    runner = tiny_runner(tmp_path, attention_backend=kind.name, **blocks)
    assert runner.info.attention_backend == kind.name
    prompts = prompts_for(random.Random(11), 9)
    for sampling in (SamplingParams(max_tokens=14), SamplingParams(max_tokens=14, temperature=1.3, seed=6)):
        never = Driver(runner, max_running=2).run(prompts, sampling)
        driver = Driver(runner, max_running=2, preempt_every=2, swap=True, rng=random.Random(4))
        assert driver.run(prompts, sampling) == never
        assert driver.num_swaps > 10

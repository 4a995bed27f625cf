"""The real model through the real scheduler and runner: whatever chunking, preemption and limits do, greedy output in
float32 equals that of transformers' `generate`, token by token."""

import random

import numpy as np
import pytest

from inflight_engine.config import EngineConfig
from inflight_engine.engine_process import load
from inflight_engine.messages import AddRequest, SetLimits
from inflight_engine.models.source import resolve
from inflight_engine.models.tokenizer import load_tokenizer
from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.limits import Limits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "builtin://smollm2"
NUM_REQUESTS = 32
TEXT = (
    "The harbour was quiet that morning. Three boats had left before dawn and a fourth lay on the mud, waiting for the "
    "tide. Nobody spoke. A dog walked along the wall, looked at the water, and turned back towards the town, where the "
    "baker had just opened the shutters and the first bread of the day was on the table. "
)


@pytest.fixture(scope="module")
def prompts():
    """32 prompts of 1 to 400 tokens, all different."""
    tokenizer = load_tokenizer(resolve(MODEL, "main"))
    text_ids = tokenizer.encode(TEXT * 8)
    rng = random.Random(7)
    lengths = [1, 2, 15, 16, 17, 400, *(rng.randint(3, 120) for _ in range(NUM_REQUESTS - 6))]
    return [text_ids[rng.randrange(40) :][:length] for length in lengths]


@pytest.fixture(scope="module")
def max_tokens(prompts):
    rng = random.Random(8)
    return [rng.randint(3, 12) for _ in prompts]


@pytest.fixture(scope="module")
def expected(prompts, max_tokens):
    """What transformers generates for each prompt alone."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    files = resolve(MODEL, "main")
    model = AutoModelForCausalLM.from_pretrained(
        files.folder,
        gguf_file=files.gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).eval()
    outputs = []
    with torch.inference_mode():
        for prompt, count in zip(prompts, max_tokens, strict=True):
            output = model.generate(
                torch.tensor([prompt]), do_sample=False, max_new_tokens=count, min_new_tokens=count, pad_token_id=0
            )
            outputs.append(output[0, len(prompt) :].tolist())
    return outputs


def run_together(prompts, max_tokens, *, change_limits=None, **sizes):
    """All prompts at once; returns outputs and the number of preemptions."""
    engine, ready = load(EngineConfig(model=MODEL, dtype="float32", max_model_len=512, **sizes))
    for request_id, (prompt, count) in enumerate(zip(prompts, max_tokens, strict=True)):
        ids = np.array(prompt, np.int32).tobytes()
        engine.handle(AddRequest(request_id, ids, SamplingParams(max_tokens=count), 0.0))
    outputs = [[] for _ in prompts]
    owner = {}
    preemptions = prefill_steps = 0
    while engine.has_work:
        if change_limits is not None:
            engine.handle(SetLimits(0, change_limits(ready.capacity)))
        report = engine.step()
        owner |= {admission.slot: admission.request_id for admission in report.admitted}
        slots, token_ids = np.frombuffer(report.slots, np.int32), np.frombuffer(report.token_ids, np.int32)
        for slot, token in zip(slots.tolist(), token_ids.tolist(), strict=True):
            outputs[owner[slot]].append(token)
        preemptions = report.stats.num_preemptions
        prefill_steps += report.stats.num_prefill_tokens > 0
    return outputs, preemptions, prefill_steps


def test_chunks_and_preemption_change_no_token(prompts, max_tokens, expected):
    outputs, preemptions, prefill_steps = run_together(
        prompts,
        max_tokens,
        max_num_seqs=16,
        max_num_batched_tokens=128,
        block_size=4,
        num_kv_blocks=120,
        kv_headroom=0.0,
    )
    assert preemptions > 0, "the pool must be small enough to preempt"
    assert prefill_steps > sum(map(len, prompts)) / 128, "the budget must be small enough to chunk"
    assert outputs == expected


def test_limits_changed_at_random_in_every_step_change_no_token(prompts, max_tokens, expected):
    rng = random.Random(9)

    def change(capacity):
        return Limits(rng.randint(1, capacity.max_num_seqs), rng.randint(1, capacity.max_num_batched_tokens))

    outputs, _, _ = run_together(
        prompts, max_tokens, change_limits=change, max_num_seqs=16, max_num_batched_tokens=256, num_kv_blocks=64
    )
    assert outputs == expected

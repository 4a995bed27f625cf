"""The real SmolLM2 through the runner, driven by hand-made plans, against transformers' `generate`."""

import random

import numpy as np
import pytest
import torch

from inflight_engine.config import EngineConfig
from inflight_engine.execution.runner import Runner
from inflight_engine.models.source import resolve
from inflight_engine.models.tokenizer import load_tokenizer
from inflight_engine.request import SamplingParams
from tests.engine.execution.driver import Driver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "builtin://smollm2"
NUM_NEW_TOKENS = 12
SENTENCES = (
    "The recipe asks for three eggs, a cup of flour and 250 grams of butter, all at room temperature. ",
    "def add(a, b):\n    return a + b\n\n\ndef test_add():\n    assert add(2, 3) == 5\n\n",
    "In 1969 two people walked on the Moon while a third one waited above them, alone with the radio. ",
    "Le chat dort sur la chaise; la pluie tombe, et personne n'a encore allumé la lampe. ",
)


@pytest.fixture(scope="module")
def prompts():
    """32 prompts, from 1 to about 500 tokens, plain and chat, none a prefix of another."""
    tokenizer = load_tokenizer(resolve(MODEL))
    rng = random.Random(3)
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 500, *(rng.randint(3, 150) for _ in range(15))]
    prompts = []
    for i, length in enumerate(lengths):
        ids = tokenizer.encode(SENTENCES[i % len(SENTENCES)] * 24)
        prompts.append(ids[i : i + length])
    for i in range(8):
        prompts.append(tokenizer.encode_chat([{"role": "user", "content": f"What is {i} times {i + 1}?"}]))
    return prompts


@pytest.fixture(scope="module")
def expected(prompts):
    from transformers import AutoModelForCausalLM, GgufConfig

    files = resolve(MODEL)
    model = AutoModelForCausalLM.from_pretrained(
        files.folder, gguf_file=files.gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    ).eval()
    model.generation_config.eos_token_id = None  # run to max_new_tokens
    # Left-padded batches of similar lengths: the reference would take minutes one by one.
    outputs = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for rows in (order[i : i + 8] for i in range(0, len(order), 8)):
        longest = len(prompts[rows[-1]])
        ids = torch.tensor([[0] * (longest - len(prompts[i])) + prompts[i] for i in rows])
        mask = torch.tensor([[0] * (longest - len(prompts[i])) + [1] * len(prompts[i]) for i in rows])
        generated = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=NUM_NEW_TOKENS)
        for i, row in zip(rows, generated[:, longest:].tolist(), strict=True):
            outputs[i] = row
    return outputs


@pytest.fixture(scope="module")
def runner():
    return Runner(
        EngineConfig(MODEL, dtype="float32", device="cpu", max_model_len=1024, max_num_seqs=32, num_kv_blocks=512)
    )


GREEDY = SamplingParams(max_tokens=NUM_NEW_TOKENS)


def test_32_prompts_together_equal_transformers_token_by_token(runner, prompts, expected):
    assert Driver(runner).run(prompts, GREEDY) == expected


@pytest.mark.parametrize(
    ("chunk", "max_running", "preempt_every"), [(48, 32, 0), (7, 5, 0), (64, 8, 5)], ids=["chunks", "tiny", "preempted"]
)
def test_chunks_small_batches_and_preemption_change_nothing(
    runner, prompts, expected, chunk, max_running, preempt_every
):
    driver = Driver(runner, chunk=chunk, max_running=max_running, preempt_every=preempt_every, rng=random.Random(chunk))
    chosen = slice(None, None, 2) if chunk == 7 else slice(None)
    assert driver.run(prompts[chosen], GREEDY) == expected[chosen]


def test_a_seeded_sample_is_the_same_alone_and_among_others(runner, prompts):
    seeded = [
        SamplingParams(max_tokens=8, temperature=0.9, top_p=0.95, seed=11),
        SamplingParams(max_tokens=8, temperature=1.3, top_k=40, seed=12),
        SamplingParams(max_tokens=8, temperature=1.0, seed=13),
        SamplingParams(max_tokens=8),
    ] * 4
    together = Driver(runner, chunk=33, preempt_every=6).run(prompts[8:24], seeded)
    alone = [Driver(runner).run([prompt], s)[0] for prompt, s in zip(prompts[8:24], seeded, strict=True)]
    assert together == alone
    assert len({tuple(output) for output in together}) > 12


def test_a_step_without_due_tokens_returns_none(runner):
    from inflight_engine.scheduling.plan import BlockGrant, PrefillChunk, SlotStart, StepPlan

    none = np.empty(0, np.int32)
    start = SlotStart(0, 1, np.arange(3, 13, dtype=np.int32), 10, GREEDY)
    plan = StepPlan(0, (), (start,), (BlockGrant(0, 0, (0,)),), (PrefillChunk(0, 0, 4, False),), none, 4)
    assert len(runner.execute(plan)) == 0
    assert len(runner.execute(StepPlan(1, (0,), (), (), (), none, 0))) == 0

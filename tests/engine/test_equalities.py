"""The real model through the real scheduler and runner, in float32: greedy output equals that of transformers'
`generate`, token by token, whatever is chunked, preempted, swapped, found in the prefix cache, reordered by a policy or
limited meanwhile; and a seeded sample is the same alone and in a full batch."""

import functools
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest

from inflight_engine.engine_process import load
from inflight_engine.messages import AddRequest, Configure
from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.tokens.tokenizer import load_tokenizer
from inflight_engine.recording.reader import Recording
from inflight_engine.recording.replay import Survey, replay
from inflight_engine.request import SamplingParams
from inflight_settings.engine import EngineConfig
from inflight_settings.limits import Limits, LimitsInForce
from inflight_settings.scheduling import ServiceClass
from tests.engine.scheduling_fields import gathered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "builtin://smollm2"
NUM_REQUESTS = 12
TEXT = (
    "The harbour was quiet that morning. Three boats had left before dawn and a fourth lay on the mud, waiting for the "
    "tide. Nobody spoke. A dog walked along the wall, looked at the water, and turned back towards the town, where the "
    "baker had just opened the shutters and the first bread of the day was on the table. "
)


@pytest.fixture(scope="module")
def prompts():
    """12 prompts of 1 to 130 tokens, all different."""
    tokenizer = load_tokenizer(resolve(MODEL, "main"))
    text_ids = tokenizer.encode(TEXT * 8)
    rng = random.Random(7)
    lengths = [1, 2, 15, 16, 17, 130, *(rng.randint(3, 60) for _ in range(NUM_REQUESTS - 6))]
    return [text_ids[rng.randrange(40) :][:length] for length in lengths]


@pytest.fixture(scope="module")
def max_tokens(prompts):
    rng = random.Random(8)
    return [rng.randint(3, 12) for _ in prompts]


@pytest.fixture(scope="module")
def reference():
    """The model in transformers."""
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    files = resolve(MODEL, "main")
    with pytest.MonkeyPatch.context() as patched:
        # It reads the file twice, each time all words of the tokenizer one by one, and makes the map for each module.
        for name in ("GGUFReader", "get_tensor_name_map"):
            patched.setattr(gguf, name, functools.cache(getattr(gguf, name)))
        return AutoModelForCausalLM.from_pretrained(
            files.folder,
            gguf_file=files.gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        ).eval()


@pytest.fixture(scope="module")
def expected(reference, prompts, max_tokens):
    """Output of transformers for each prompt alone."""
    import torch

    outputs = []
    with torch.inference_mode():
        for prompt, count in zip(prompts, max_tokens, strict=True):
            output = reference.generate(
                torch.tensor([prompt]), do_sample=False, max_new_tokens=count, min_new_tokens=count, pad_token_id=0
            )
            outputs.append(output[0, len(prompt) :].tolist())
    return outputs


@dataclass
class Run:
    """Outputs and counts of a run."""

    outputs: list[list[int]]
    preemptions: int = 0
    most_tier_blocks: int = 0
    prefix_hits: int = 0
    prefill_steps: int = 0
    prompt_logprobs: dict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """By request, of each token of its prompt by its position."""


def make_engine(**config):
    sizes = {"max_num_seqs": 16, "max_num_batched_tokens": 128, "num_kv_blocks": 400, "max_model_len": 512}
    return load(EngineConfig(model=MODEL, dtype="float32", **(sizes | config)))


def run(engine, prompts, sampling, order=None, *, change_limits=None, **fields):
    """All prompts at once. `fields`: of AddRequest, one list of values each. `order`: gets the requests as they are
    admitted."""
    for request_id, (prompt, params) in enumerate(zip(prompts, sampling, strict=True)):
        own = {name: values[request_id] for name, values in fields.items()}
        own.setdefault("arrival_time", float(request_id))
        engine.handle(AddRequest(request_id, np.array(prompt, np.int32).tobytes(), params, **gathered(own)))
    result = Run([[] for _ in prompts])
    owner = {}
    while engine.has_work:
        if change_limits is not None:
            engine.handle(Configure(0, change_limits()))
        report = engine.step()
        owner |= {admission.slot: admission.request_id for admission in report.admitted}
        if order is not None:
            order += [admission.request_id for admission in report.admitted]
        slots, token_ids = np.frombuffer(report.slots, np.int32), np.frombuffer(report.token_ids, np.int32)
        for slot, token in zip(slots.tolist(), token_ids.tolist(), strict=True):
            result.outputs[owner[slot]].append(token)
        for each in report.prompt_logprobs:
            values = np.frombuffer(each.logprobs, np.float32).tolist()
            result.prompt_logprobs[owner[each.slot]].update(enumerate(values, each.first))
        result.preemptions, result.prefix_hits = report.stats.num_preemptions, report.stats.prefix_hits
        result.most_tier_blocks = max(result.most_tier_blocks, report.stats.num_tier_blocks)
        result.prefill_steps += report.stats.num_prefill_tokens > 0
    return result


SMALL_POOL = {"block_size": 4, "num_kv_blocks": 60, "kv_headroom": 0.0, "max_num_batched_tokens": 64}
"""Too small for what runs at once, so that requests are preempted; and chunks."""


@pytest.fixture(scope="module")
def greedy(max_tokens):
    return [SamplingParams(max_tokens=count) for count in max_tokens]


@pytest.mark.parametrize("victim", ["last_arrived", "most_preempted_last"])
def test_chunked_and_preempted_equals_whole_and_alone(prompts, greedy, expected, victim):
    engine, _ = make_engine(**SMALL_POOL, preemption="recompute", preemption_victim=victim, prefix_caching=False)
    result = run(engine, prompts, greedy)
    assert result.preemptions > 0, "the pool must be small enough to preempt"
    assert result.prefill_steps > sum(map(len, prompts)) / 64, "the budget must be small enough to chunk"
    assert result.outputs == expected


def test_evicted_and_loaded_equals_never_evicted(prompts, greedy, expected):
    swapped = {"preemption": "swap", "preemption_victim": "longest_first", "swap_space": 64 << 20}
    engine, _ = make_engine(**SMALL_POOL, **swapped)
    result = run(engine, prompts, greedy)
    assert engine._scheduler.offload.num_loaded > 0, "the pool must be small enough to preempt"
    assert result.outputs == expected


def test_a_prefix_hit_equals_a_cold_start(prompts, greedy, expected):
    engine, _ = make_engine()
    cold = run(engine, prompts, greedy)
    warm = run(engine, prompts, greedy)
    assert warm.prefix_hits > cold.prefix_hits + 200, "the second run must find what the first computed"
    assert (cold.outputs, warm.outputs) == (expected, expected)


def test_copies_of_a_prompt_that_are_computed_in_one_step_equal_the_prompt_alone(prompts, greedy, expected):
    engine, _ = make_engine(max_num_batched_tokens=256)
    copies = run(engine, [prompts[5]] * 4, [greedy[5]] * 4)
    assert (copies.prefill_steps, copies.prefix_hits) == (1, 3 * ((len(prompts[5]) - 1) // 16 * 16))
    assert copies.outputs == [expected[5]] * 4


def test_prefix_hits_under_preemption_by_recompute_and_swap_change_no_token(prompts):
    shared = [prompts[5][:40] + prompt for prompt in prompts[6:]]
    greedy = [SamplingParams(max_tokens=10)] * len(shared)
    alone, _ = make_engine(prefix_caching=False)
    cold = run(alone, shared, greedy)
    engine, _ = make_engine(**SMALL_POOL | {"num_kv_blocks": 40}, swap_space=8 << 20)
    result = run(engine, shared, greedy)
    assert result.preemptions > 0
    assert result.prefix_hits > 0
    assert result.outputs == cold.outputs


def conversations(prompts):
    """Turns of 5 conversations in turns, whose prompts are 5 times the device's cache in all."""
    return [prompts[5][start : start + 30 + 20 * turn] for turn in range(4) for start in range(0, 25, 5)]


TIER = {"block_size": 4, "num_kv_blocks": 40, "max_model_len": 128, "preemption": "swap", "swap_space": 64 << 20}


@pytest.mark.parametrize("together", [1, 3])
def test_turns_whose_prefixes_come_from_host_memory_equal_those_that_are_computed(prompts, together):
    turns = conversations(prompts)
    greedy = [SamplingParams(max_tokens=12)] * together
    alone, _ = make_engine(prefix_caching=False)
    engine, _ = make_engine(**TIER)
    for first in range(0, len(turns) - together + 1, together):
        some = turns[first : first + together]
        assert run(engine, some, greedy).outputs == run(alone, some, greedy).outputs
    assert engine._scheduler.offload.num_loaded > 50


def test_blocks_that_are_damaged_in_host_memory_are_computed_again(prompts):
    """A bit of every third block, again and again."""
    turns = conversations(prompts)
    greedy = [SamplingParams(max_tokens=12)] * 2
    alone, _ = make_engine(prefix_caching=False)
    engine, _ = make_engine(**TIER)
    memory, rng = engine._runner.host_cache._blocks, random.Random(12)
    for first in range(0, len(turns), 2):
        for place in range(0, len(memory), 3):
            memory[place, rng.randrange(memory.shape[1])] ^= 1 << rng.randrange(8)
        some = turns[first : first + 2]
        assert run(engine, some, greedy).outputs == run(alone, some, greedy).outputs
    offload = engine._scheduler.offload
    assert offload.num_loaded > offload.num_failed > 0
    assert engine._scheduler.kv_usage == 0


def test_log_probabilities_of_prompts_equal_those_of_transformers_whatever_is_cached_or_preempted(reference, prompts):
    import torch

    some = [prompts[5][:70], prompts[5][:50], *prompts[1:4]]
    engine, _ = make_engine(**SMALL_POOL | {"num_kv_blocks": 36}, preemption="recompute")
    run(engine, some[:1], [SamplingParams(max_tokens=1)])
    result = run(engine, some, [SamplingParams(max_tokens=6, prompt_logprobs=0)] * len(some))
    assert result.preemptions > 0
    for request_id, prompt in enumerate(some):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt])).logits[0, :-1]
        of_prompt = logits.log_softmax(dim=-1).gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()
        assert result.prompt_logprobs[request_id] == pytest.approx(dict(enumerate(of_prompt, 1)), abs=1e-3)


@pytest.mark.parametrize("policy", ["sjf", "priority", "fair"])
def test_any_policy_gives_each_request_what_fcfs_gives_it(prompts, greedy, expected, policy):
    rng = random.Random(10)
    classes = (ServiceClass("a", weight=3.0), ServiceClass("b"))
    engine, _ = make_engine(max_num_seqs=4, policy=policy, classes=classes)
    result = run(
        engine,
        prompts,
        greedy,
        priority=[rng.randint(-3, 3) for _ in prompts],
        tenant=[rng.choice("xyz") for _ in prompts],
        service_class=[rng.choice("ab") for _ in prompts],
    )
    assert result.outputs == expected


def test_requests_that_go_by_their_deadlines_get_what_fcfs_gives_them(prompts, greedy, expected, tmp_path):
    rng, path = random.Random(11), tmp_path / "run.gz"
    deadlines = {"ttft_target": 50.0, "ttft_per_1k_tokens": 20.0, "late_share": 0.25, "record": str(path)}
    engine, _ = make_engine(max_num_seqs=4, policy="deadline", **deadlines)
    arrived = time.monotonic()
    order = []
    result = run(engine, prompts, greedy, order, arrival_time=[arrived - rng.choice((0, 100)) for _ in prompts])
    assert order != sorted(order)
    assert result.outputs == expected
    engine.flush()
    recorded, events = Recording(path).header.config, list(Recording(path).events())
    assert (recorded.ttft_target, recorded.ttft_per_token) == (50.0, 0.02)
    assert replay(recorded, events, Survey(events)) is None


def test_limits_changed_at_random_in_every_step_change_no_token(prompts, greedy, expected):
    rng = random.Random(9)
    engine, ready = make_engine(num_kv_blocks=32)
    capacity = ready.capacity

    def change():
        return LimitsInForce(
            Limits(rng.randint(1, capacity.max_num_seqs), rng.randint(1, capacity.max_num_batched_tokens))
        )

    assert run(engine, prompts, greedy, change_limits=change).outputs == expected


def test_a_seeded_sample_is_the_same_alone_and_in_a_full_batch(prompts):
    sampling = [
        SamplingParams(
            max_tokens=8,
            temperature=0.7 + 0.05 * (index % 8),
            top_p=0.9 if index % 2 else 1.0,
            top_k=40 if index % 3 else 0,
            min_p=0.02 if index % 5 == 0 else 0.0,
            repetition_penalty=1.2 if index % 4 == 0 else 1.0,
            presence_penalty=0.5 if index % 6 == 0 else 0.0,
            frequency_penalty=0.3 if index % 7 == 0 else 0.0,
            logit_bias=((17 + index, 5.0),) if index % 8 == 0 else (),
            seed=1000 + index,
        )
        for index in range(NUM_REQUESTS)
    ]
    engine, _ = make_engine(prefix_caching=False)
    together = run(engine, prompts, sampling).outputs
    for index in (0, 1, 6, 7, 8):  # with each of the fields above and without it
        alone = run(engine, prompts[index : index + 1], sampling[index : index + 1]).outputs
        assert alone == [together[index]], f"request {index}"

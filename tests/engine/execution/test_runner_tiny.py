"""Random small models of every supported kind, made by transformers, give the same tokens here as there."""

import random

import pytest
import torch

from inflight_engine.execution import build
from inflight_engine.execution.build import choose_target, make_batch_invariant
from inflight_engine.execution.memory.kv_size import POD_MEMORY_RESERVE
from inflight_engine.execution.memory.resources import Resources
from inflight_engine.execution.parallel.ranks import make_runner
from inflight_engine.models.checkpoints.shape import ModelShape
from inflight_engine.models.checkpoints.transformers_config import TransformersConfig
from inflight_engine.request import SamplingParams
from inflight_settings.engine import EngineConfig
from tests.engine.execution.driver import Driver
from tests.engine.execution.tiny_model import KINDS, SWAP_SPACE, VOCAB, generate, make_model, prompts_for, tiny_runner


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_equal_transformers(tmp_path, kind):
    model = make_model(tmp_path, kind)
    prompts = prompts_for(random.Random(kind))
    expected = [generate(model, prompt, 10) for prompt in prompts]
    runner = tiny_runner(tmp_path, swap_space=SWAP_SPACE)
    whole = Driver(runner, rng=random.Random(1)).run(prompts, SamplingParams(max_tokens=10))
    assert whole == expected
    chunked = Driver(runner, chunk=9, max_running=3, preempt_every=4).run(prompts, SamplingParams(max_tokens=10))
    assert chunked == expected
    swapping = Driver(runner, chunk=9, max_running=3, preempt_every=3, swap=True, rng=random.Random(2))
    assert swapping.run(prompts, SamplingParams(max_tokens=10)) == expected
    assert swapping.num_swaps > 0
    assert swapping.num_decodes_at_start > 0, "some must go straight on to decode"


def test_sharded_weights_are_found_through_their_index(tmp_path):
    model = make_model(tmp_path, "llama-gqa-untied", max_shard_size="50KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    prompt = [5, 6, 7, 8]
    assert Driver(tiny_runner(tmp_path)).run([prompt], SamplingParams(max_tokens=6)) == [generate(model, prompt, 6)]


def mixed_sampling(count):
    """Every parameter, in many combinations."""
    return [
        SamplingParams(
            max_tokens=12,
            temperature=(i % 4) * 0.7,
            top_k=(i % 3) * 20,
            top_p=1 - (i % 2) * 0.1,
            min_p=0.02 * (i % 5 == 1),
            repetition_penalty=1 + 0.4 * (i % 3 == 1),
            presence_penalty=0.9 * (i % 4 == 2),
            frequency_penalty=0.6 * (i % 5 < 2),
            logit_bias=((i, 3.0), (i + 40, -5.0)) if i % 6 == 3 else (),
            seed=i // 2,
            logprobs=i % 4 if i % 3 == 0 else None,
            # For all of its tokens: a sequence that ends early has no tokens to compare.
            min_tokens=12 * (i % 4 == 3),
            stop_token_ids=tuple(range(i, VOCAB, 3)) if i % 4 == 3 else (),
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A model's folder, requests, and what each gives alone: tokens, and log-probabilities."""
    folder = tmp_path_factory.mktemp("alone")
    make_model(folder, "llama-gqa-untied")
    runner = tiny_runner(folder, num_kv_blocks=1024)
    prompts, sampling = prompts_for(random.Random(5), 24), mixed_sampling(24)
    outputs, reports = [], []
    for prompt, how in zip(prompts, sampling, strict=True):
        driver = Driver(runner)
        outputs += driver.run([prompt], how)
        reports.append(driver.sequences[0].logprobs)
    return folder, prompts, sampling, outputs, reports


@pytest.mark.parametrize(
    "company",
    [
        {},
        {"chunk": 5, "max_running": 4, "preempt_every": 3},
        {"chunk": 9, "max_running": 6, "preempt_every": 2, "swap": True},
        {"chunk": 7, "max_running": 5, "share_prefixes": True, "preempt_every": 5},
    ],
    ids=["together", "chunked-recomputed", "chunked-swapped", "prefixes-shared"],
)
def test_seeded_sampling_does_not_depend_on_company_chunks_prefixes_or_preemption(alone, company):
    folder, prompts, sampling, outputs, reports = alone
    runner = tiny_runner(folder, num_kv_blocks=1024, swap_space=SWAP_SPACE)
    driver = Driver(runner, rng=random.Random(3), **company)
    assert driver.run(prompts, sampling) == outputs
    for sequence, expected in zip(driver.sequences, reports, strict=True):
        assert len(sequence.logprobs) == len(expected)
        for report, other in zip(sequence.logprobs, expected, strict=True):
            assert report.top_token_ids == other.top_token_ids
            assert report.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_penalties_bias_and_logprobs_of_a_reused_slot_do_not_reach_its_next_request(tmp_path):
    model = make_model(tmp_path, "llama-gqa-untied")
    heavy = SamplingParams(
        max_tokens=5,
        temperature=2.0,
        repetition_penalty=5.0,
        presence_penalty=50.0,
        frequency_penalty=50.0,
        logit_bias=((3, 100.0),),
        seed=1,
        logprobs=4,
    )
    plain = SamplingParams(max_tokens=8)
    # Its prompt and its likely output are all penalised for the request before it.
    prompt = [9, 8, 7]
    first = prompt + generate(model, prompt, 8)
    driver = Driver(tiny_runner(tmp_path), max_running=1)
    assert driver.run([first, prompt], [heavy, plain])[1] == first[3:]
    assert driver.sequences[1].logprobs == []


def test_logprobs_are_the_models_own(tmp_path):
    model = make_model(tmp_path, "llama-gqa-untied")
    prompt = [9, 8, 7, 50]
    changed = SamplingParams(
        max_tokens=6, temperature=1.5, top_k=5, repetition_penalty=3.0, logit_bias=((3, 9.0),), seed=4, logprobs=3
    )
    driver = Driver(tiny_runner(tmp_path))
    (output,) = driver.run([prompt], changed)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1)
    for row, token, report in zip(expected, output, driver.sequences[0].logprobs, strict=True):
        assert report.logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert report.top_token_ids == row.topk(3).indices.tolist()


def test_a_start_behind_another_requests_blocks_gives_the_same_tokens_as_a_cold_one(tmp_path):
    model = make_model(tmp_path, "llama-gqa-untied")
    common = prompts_for(random.Random(2))[4]  # 40 tokens, ten blocks
    prompts = [common, [*common, 1], [*common, 2, 3, 4, 5, 6], common[:21], common[:38] + [5] * 30]
    expected = [generate(model, prompt, 10) for prompt in prompts]
    driver = Driver(tiny_runner(tmp_path), max_running=2, share_prefixes=True, rng=random.Random(1))
    assert driver.run(prompts, SamplingParams(max_tokens=10)) == expected
    assert driver.num_hit_tokens == 40 + 20 + 36  # the second started together with the first
    chunked = Driver(tiny_runner(tmp_path), chunk=7, max_running=1, share_prefixes=True, rng=random.Random(1))
    assert chunked.run(prompts, SamplingParams(max_tokens=10)) == expected
    assert chunked.num_hit_tokens == 40 + 40 + 20 + 36


def test_a_long_chunk_is_attended_in_pieces(tmp_path, monkeypatch):
    from inflight_engine.execution.attention import torch_sdpa

    model = make_model(tmp_path, "llama-gqa-untied")
    prompt = [i * 31 % VOCAB for i in range(100)]
    monkeypatch.setattr(torch_sdpa, "_MASKED_QUERIES", 8)
    output = Driver(tiny_runner(tmp_path), chunk=60).run([prompt], SamplingParams(max_tokens=6))
    assert output == [generate(model, prompt, 6)]


def test_info_says_what_was_loaded(tmp_path):
    make_model(tmp_path, "llama-gqa-untied")
    info = tiny_runner(tmp_path, max_model_len=100).info
    assert (info.num_blocks, info.block_size, info.max_model_len, info.vocab_size) == (256, 4, 100, VOCAB)
    assert info.kv_bytes_per_token == 2 * 3 * 2 * 8 * 4
    assert (info.device, info.dtype, info.attention_backend) == ("cpu", "float32", "torch-sdpa")
    assert (info.num_host_blocks, info.copy_tokens_per_second) == (0, None)


def test_swap_space_is_whole_blocks_and_the_copy_rate_is_measured(tmp_path):
    make_model(tmp_path, "llama-gqa-untied")
    info = tiny_runner(tmp_path, swap_space=10 * 4 * 384 + 17).info
    assert info.num_host_blocks == 10
    assert info.copy_tokens_per_second > 1000


def test_memory_that_is_left_is_what_neither_kv_cache_nor_swap_space_nor_activations_will_take(tmp_path, monkeypatch):
    make_model(tmp_path, "llama-gqa-untied")
    monkeypatch.setattr(build, "read_resources", lambda: Resources(2, 3 << 30, False))
    left = (3 << 30) - POD_MEMORY_RESERVE
    assert tiny_runner(tmp_path).info.memory_left == left - 256 * 4 * 384
    assert tiny_runner(tmp_path, swap_space=10 * 4 * 384).info.memory_left == left - 266 * 4 * 384


def test_a_longer_context_than_the_models_own_is_refused(tmp_path):
    make_model(tmp_path, "llama-gqa-untied")
    with pytest.raises(ValueError, match="max_model_len must be between 1 and 256"):
        tiny_runner(tmp_path, max_model_len=257)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype fp8 needs a GPU; on a CPU set it to auto"),
        ({"attention_backend": "triton"}, "attention_backend triton: triton cannot be used: it needs a GPU"),
        (
            {"attention_backend": "torch-sdpa", "batch_invariant": True},
            "batch_invariant is not supported on a CPU",
        ),
    ],
)
def test_what_cannot_be_served_here_is_refused_before_the_weights_are_read(tmp_path, options, says):
    make_model(tmp_path, "llama-mqa")
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match=says):
        tiny_runner(tmp_path, **options)


def test_sleep_is_refused_where_memory_cannot_be_given_back(tmp_path, monkeypatch):
    make_model(tmp_path, "llama-mqa")
    with pytest.raises(ValueError, match="sleep_after is not supported with tensor_parallel_size above 1"):
        make_runner(EngineConfig(str(tmp_path), device="cpu", sleep_after=9.0, tensor_parallel_size=2))
    monkeypatch.setattr(build, "choose_device", lambda name: torch.device("cuda"))
    with pytest.raises(ValueError, match="sleep_after is supported on a CPU only; leave it out on a GPU"):
        choose_target(EngineConfig(str(tmp_path), sleep_after=9.0))


def test_a_runner_goes_on_after_its_cache_was_freed(tmp_path):
    make_model(tmp_path, "llama-gqa-untied")
    runner, prompts = tiny_runner(tmp_path, swap_space=SWAP_SPACE), prompts_for(random.Random(5))
    assert runner.info.can_sleep
    tokens = []
    for _ in range(2):
        tokens.append(Driver(runner, chunk=9, max_running=3).run(prompts, SamplingParams(max_tokens=10)))
        runner.free_cache()
    assert tokens[0] == tokens[1]


def test_on_a_gpu_batch_invariance_is_refused_where_it_cannot_be_had():
    config, gpu = EngineConfig("somewhere", batch_invariant=True), torch.device("cuda")
    shape = ModelShape("GemmaForCausalLM", 9, 9, 1, 1, 1, 8, (None,))
    with pytest.raises(ValueError, match="batch_invariant is not supported with GemmaForCausalLM"):
        make_batch_invariant(config, TransformersConfig(shape), gpu)


def test_a_missing_tensor_is_named(tmp_path):
    from safetensors.torch import load_file, save_file

    make_model(tmp_path, "llama-gqa-untied")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"no tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        tiny_runner(tmp_path)


def test_a_damaged_weights_file_is_named(tmp_path):
    make_model(tmp_path, "llama-gqa-untied")
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read"):
        tiny_runner(tmp_path)

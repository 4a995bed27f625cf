"""Blocks copied out to host memory come back as they were, wherever they come back to."""

import random

import pytest
import torch

from inflight_engine.execution.attention.base import AttentionSpec
from inflight_engine.execution.attention.torch_sdpa import TorchSdpaBackend
from inflight_engine.execution.host_cache import HostCache
from inflight_engine.models.config import DecoderConfig, load_model_config
from inflight_engine.models.source import resolve
from inflight_engine.request import SamplingParams
from tests.engine.execution.driver import Driver
from tests.engine.execution.tiny_model import SWAP_SPACE, make_model, prompts_for, tiny_runner

BLOCK_SIZE, BLOCKS = 4, 12
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, "llama-gqa-untied")
    return load_model_config(resolve(str(folder), "main"))


def filled(config: DecoderConfig, dtype):
    """A backend whose blocks all hold different numbers."""
    backend = TorchSdpaBackend(AttentionSpec(config.shape, BLOCKS, BLOCK_SIZE, dtype, dtype, CPU, 4, 64, 64))
    backend._cache.normal_(generator=torch.Generator().manual_seed(1))
    return backend


def block_bytes(config: DecoderConfig, dtype):
    return config.shape.kv_bytes_per_token(dtype.itemsize) * BLOCK_SIZE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_round_trip_is_exact_and_touches_nothing_else(config, dtype):
    backend = filled(config, dtype)
    host = HostCache(9, BLOCK_SIZE, block_bytes(config, dtype), CPU, backend)
    before = backend._cache.clone()
    host.copy_out([3, 7, 0, 11], [8, 2, 3, 5])
    assert torch.equal(backend._cache, before)
    host.copy_in([8, 2, 3, 5], [1, 3, 10, 4])
    for there, here in zip([3, 7, 0, 11], [1, 3, 10, 4], strict=True):
        assert torch.equal(backend._cache[:, :, here], before[:, :, there])
    others = [block for block in range(BLOCKS) if block not in (1, 3, 10, 4)]
    assert torch.equal(backend._cache[:, :, others], before[:, :, others])


def test_what_is_copied_out_stays_while_its_block_is_overwritten(config):
    backend = filled(config, torch.float32)
    host = HostCache(2, BLOCK_SIZE, block_bytes(config, torch.float32), CPU, backend)
    before = backend._cache[:, :, 6].clone()
    host.copy_out([6], [1])
    backend._cache[:, :, 6] = 9.0
    host.copy_out([5], [0])
    host.copy_in([1], [2])
    assert torch.equal(backend._cache[:, :, 2], before)


def test_as_many_blocks_must_be_named_on_both_sides(config):
    host = HostCache(2, BLOCK_SIZE, block_bytes(config, torch.float32), CPU, filled(config, torch.float32))
    with pytest.raises(ValueError, match="zip"):
        host.copy_out([1, 2], [0])
    with pytest.raises(ValueError, match="zip"):
        host.copy_in([1], [2, 3])


def test_the_measured_rate_is_that_of_the_copies(config, monkeypatch):
    backend = filled(config, torch.float32)
    host = HostCache(5, BLOCK_SIZE, block_bytes(config, torch.float32), CPU, backend)
    ticks = iter([0.0, 0.5, 1.0, 1.2, 2.0, 2.4])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    assert host.measure_copy_rate(BLOCKS) == pytest.approx(5 * BLOCK_SIZE / 0.2)


def test_a_swapped_out_request_continues_as_if_it_had_never_left(tmp_path):
    """Greedy, and drawn: with every block overwritten by others while it is away, at other places afterwards."""
    make_model(tmp_path, "llama-gqa-untied")
    runner = tiny_runner(tmp_path, num_kv_blocks=64, swap_space=SWAP_SPACE)
    prompts = prompts_for(random.Random(11), 9)
    for sampling in (SamplingParams(max_tokens=14), SamplingParams(max_tokens=14, temperature=1.3, seed=6)):
        never = Driver(runner, max_running=2).run(prompts, sampling)
        driver = Driver(runner, max_running=2, preempt_every=2, swap=True, rng=random.Random(4))
        assert driver.run(prompts, sampling) == never
        assert driver.num_swaps > 10

"""How many KV blocks are allocated from what is given, free and useful; on the device and in host memory."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.execution.memory.kv_size import (
    CPU_MEMORY_CAP,
    POD_MEMORY_RESERVE,
    GpuMemory,
    HostMemory,
    KVCacheSizeError,
    KVDemand,
    cpu_budget,
    gpu_budget,
    num_host_blocks,
    num_kv_blocks,
)
from inflight_settings.engine import EngineConfig

CONFIG = EngineConfig("model", max_num_seqs=256, block_size=16)
DEMAND = KVDemand(bytes_per_token=46080, max_model_len=8192, block_size=16)
PLENTY = HostMemory(100 << 30, limited=False)
GPU = GpuMemory(total=80 << 30, used=20 << 30, activations=3 << 30, graphs=1 << 30)
BLOCK_BYTES = 46080 * 16


def test_a_given_number_of_blocks_is_taken_as_it_is():
    assert num_kv_blocks(replace(CONFIG, num_kv_blocks=3), DEMAND, PLENTY) == 3


def test_no_blocks_at_all_are_refused():
    with pytest.raises(KVCacheSizeError, match="num_kv_blocks must be at least 1, not 0"):
        num_kv_blocks(replace(CONFIG, num_kv_blocks=0), DEMAND, PLENTY)


def test_given_bytes_are_filled_with_whole_blocks():
    assert num_kv_blocks(replace(CONFIG, kv_cache_memory=512 * BLOCK_BYTES + 5), DEMAND, PLENTY) == 512


def test_a_machine_without_limits_is_not_filled():
    assert num_kv_blocks(CONFIG, DEMAND, PLENTY) == CPU_MEMORY_CAP // BLOCK_BYTES


def test_swap_space_comes_out_of_the_same_memory_on_a_cpu_only():
    config = replace(CONFIG, swap_space=1 << 30)
    assert num_kv_blocks(config, DEMAND, HostMemory(2 << 30, limited=False)) == (1 << 29) // BLOCK_BYTES
    assert num_kv_blocks(config, DEMAND, GPU) == num_kv_blocks(CONFIG, DEMAND, GPU)


def test_a_cpu_takes_half_of_what_is_available():
    assert num_kv_blocks(CONFIG, DEMAND, HostMemory(2 << 30, limited=False)) == (1 << 30) // BLOCK_BYTES


def test_the_cap_gives_way_to_one_sequence_of_full_length():
    assert num_kv_blocks(CONFIG, replace(DEMAND, max_model_len=131072), PLENTY) == 131072 // 16


@pytest.mark.parametrize(("left", "expected"), [(1 << 30, 1 << 29), (2 << 30, 1 << 30), (21 << 30, 18 << 30)])
def test_a_pod_of_its_own_fills_what_is_left_but_a_reserve(left, expected):
    assert cpu_budget(HostMemory(left, limited=True), swap_space=0, sequence_bytes=1) == expected
    assert cpu_budget(HostMemory(left + 5, limited=True), swap_space=5, sequence_bytes=1) == expected


@given(st.integers(0, 1 << 42), st.integers(0, 1 << 36), st.booleans())
def test_half_of_it_or_the_reserve_stays_free_and_more_memory_is_never_less_cache(left, more, limited):
    def budget(available):
        return cpu_budget(HostMemory(available, limited), swap_space=0, sequence_bytes=1 << 29)

    assert 0 <= budget(left) <= max(left // 2, left - POD_MEMORY_RESERVE)
    assert budget(left) <= budget(left + more)


def test_on_a_gpu_all_together_take_the_share_that_is_given():
    assert gpu_budget(0.9, GPU) == (72 - 24) << 30
    assert num_kv_blocks(CONFIG, DEMAND, GPU) == (48 << 30) // BLOCK_BYTES
    assert gpu_budget(0.25, GPU) == 0
    assert gpu_budget(1.0, replace(GPU, used=0, activations=0, graphs=0)) == GPU.total


@pytest.mark.parametrize("utilization", [0.0, -0.1, 1.01])
def test_a_utilization_that_is_no_share_is_refused(utilization):
    with pytest.raises(KVCacheSizeError, match="gpu_memory_utilization must be above 0 and at most 1"):
        num_kv_blocks(replace(CONFIG, gpu_memory_utilization=utilization, num_kv_blocks=3), DEMAND, GPU)


def test_no_more_than_all_slots_can_use():
    config = replace(CONFIG, max_num_seqs=2)
    demand = replace(DEMAND, max_model_len=100)
    assert num_kv_blocks(config, demand, PLENTY) == num_kv_blocks(config, demand, GPU) == 2 * 7


def test_too_little_memory_says_how_many_tokens_fit_and_what_to_change():
    with pytest.raises(KVCacheSizeError, match=r"holds 3200 tokens.*lower max_model_len or give it more memory"):
        num_kv_blocks(CONFIG, DEMAND, HostMemory(400 * BLOCK_BYTES, limited=False))


def test_too_little_on_a_gpu_says_what_took_it_and_which_settings_to_change():
    full = replace(GPU, used=68 << 30)
    expected = (
        r"gpu_memory_utilization 0.9 of 81920 MiB, less 69632 MiB in use, 3072 MiB for a step of 8192 tokens and 1024 "
        r"MiB for CUDA graphs, holds 0 tokens.*lower max_model_len or max_num_batched_tokens, raise "
        r"gpu_memory_utilization, or set kv_cache_dtype to fp8"
    )
    with pytest.raises(KVCacheSizeError, match=expected):
        num_kv_blocks(CONFIG, DEMAND, full)


def test_too_little_given_names_the_setting():
    with pytest.raises(KVCacheSizeError, match=r"kv_cache_memory 1000 holds 0 tokens.*or raise kv_cache_memory"):
        num_kv_blocks(replace(CONFIG, kv_cache_memory=1000), DEMAND, PLENTY)


def test_swap_space_is_filled_with_whole_blocks():
    assert num_host_blocks(0, BLOCK_BYTES, available=0) == 0
    assert num_host_blocks(0, BLOCK_BYTES, available=-BLOCK_BYTES) == 0
    assert num_host_blocks(BLOCK_BYTES, BLOCK_BYTES, available=BLOCK_BYTES) == 1
    assert num_host_blocks(7 * BLOCK_BYTES + 5, BLOCK_BYTES, available=1 << 40) == 7


def test_swap_space_that_holds_no_block_is_refused():
    with pytest.raises(KVCacheSizeError, match=r"swap_space 737279 holds not even one KV block of 737280 bytes; raise"):
        num_host_blocks(BLOCK_BYTES - 1, BLOCK_BYTES, available=1 << 40)


def test_negative_swap_space_is_refused():
    with pytest.raises(KVCacheSizeError, match="swap_space must be 0"):
        num_host_blocks(-1, BLOCK_BYTES, available=1 << 40)


def test_more_swap_space_than_memory_is_refused():
    with pytest.raises(KVCacheSizeError, match=r"swap_space 737281 is more than the 737280 bytes.*lower swap_space"):
        num_host_blocks(BLOCK_BYTES + 1, BLOCK_BYTES, available=BLOCK_BYTES)

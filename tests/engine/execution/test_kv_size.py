"""How many KV blocks are allocated from what is given, free and useful; on the device and in host memory."""

from dataclasses import replace

import pytest

from inflight_engine.config import EngineConfig
from inflight_engine.execution.kv_size import CPU_MEMORY_CAP, KVCacheSizeError, KVDemand, num_host_blocks, num_kv_blocks

CONFIG = EngineConfig("model", max_num_seqs=256, block_size=16)
DEMAND = KVDemand(bytes_per_token=46080, max_model_len=8192, on_gpu=False, available=100 << 30)
BLOCK_BYTES = 46080 * 16


def test_a_given_number_of_blocks_is_taken_as_it_is():
    assert num_kv_blocks(replace(CONFIG, num_kv_blocks=3), DEMAND) == 3


def test_no_blocks_at_all_are_refused():
    with pytest.raises(KVCacheSizeError, match="num_kv_blocks must be at least 1, not 0"):
        num_kv_blocks(replace(CONFIG, num_kv_blocks=0), DEMAND)


def test_given_bytes_are_filled_with_whole_blocks():
    assert num_kv_blocks(replace(CONFIG, kv_cache_memory=512 * BLOCK_BYTES + 5), DEMAND) == 512


def test_a_cpu_with_much_memory_is_capped():
    assert num_kv_blocks(CONFIG, DEMAND) == CPU_MEMORY_CAP // BLOCK_BYTES


def test_swap_space_comes_out_of_the_same_memory_on_a_cpu_only():
    config, demand = replace(CONFIG, swap_space=1 << 30), replace(DEMAND, available=2 << 30)
    assert num_kv_blocks(config, demand) == (1 << 29) // BLOCK_BYTES
    on_gpu = replace(demand, on_gpu=True)
    assert num_kv_blocks(config, on_gpu) == num_kv_blocks(CONFIG, on_gpu)


def test_a_cpu_takes_half_of_what_is_available():
    assert num_kv_blocks(CONFIG, replace(DEMAND, available=2 << 30)) == (1 << 30) // BLOCK_BYTES


def test_the_cap_gives_way_to_one_sequence_of_full_length():
    demand = replace(DEMAND, max_model_len=131072)
    assert num_kv_blocks(CONFIG, demand) == 131072 // 16


def test_a_gpu_takes_nine_tenths_of_what_is_free():
    demand = replace(DEMAND, on_gpu=True)
    assert num_kv_blocks(CONFIG, demand) == int((100 << 30) * 0.9) // BLOCK_BYTES


def test_no_more_than_all_slots_can_use():
    config = replace(CONFIG, max_num_seqs=2)
    demand = replace(DEMAND, max_model_len=100)
    assert num_kv_blocks(config, demand) == 2 * 7


def test_too_little_memory_says_how_many_tokens_fit_and_what_to_change():
    demand = replace(DEMAND, available=400 * BLOCK_BYTES)
    with pytest.raises(KVCacheSizeError, match=r"holds 3200 tokens.*lower max_model_len or give it more memory"):
        num_kv_blocks(CONFIG, demand)


def test_too_little_given_names_the_setting():
    with pytest.raises(KVCacheSizeError, match=r"kv_cache_memory 1000 holds 0 tokens.*raise kv_cache_memory"):
        num_kv_blocks(replace(CONFIG, kv_cache_memory=1000), DEMAND)


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

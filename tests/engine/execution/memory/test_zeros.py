"""Memory for caches costs nothing before it is used."""

import re
from pathlib import Path

import pytest
import torch

from inflight_engine.execution.memory.zeros import give_back, zeros

CPU = torch.device("cpu")


def resident_bytes():
    return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


def test_it_is_zero_and_taken_when_it_is_touched():
    before = resident_bytes()
    cache = zeros((64, 1 << 20, 4), torch.bfloat16, CPU)
    assert resident_bytes() - before < 1 << 26
    assert cache.shape == (64, 1 << 20, 4)
    assert cache.data_ptr() % 4096 == 0
    assert not cache[5].any()
    cache[5] = 1
    assert cache[5].sum(dtype=torch.float32) == 4 << 20
    assert not cache[4].any()


def test_given_back_pages_are_free_and_zero_again_at_the_same_addresses():
    cache = zeros((64, 1 << 20), torch.float32, CPU)
    view, address = cache.movedim(1, 0), cache.data_ptr()
    cache[:32] = 1.0
    full = resident_bytes()
    give_back(view)
    assert full - resident_bytes() > 100 << 20
    assert cache.data_ptr() == address
    assert not cache[:2].any()
    cache[1] = 2.0
    assert view[0, 1] == 2.0
    give_back(zeros((0, 4), torch.float32, CPU))


def test_a_cache_larger_than_there_is_address_space_says_what_to_lower():
    with pytest.raises(MemoryError, match="lower kv_cache_memory, num_kv_blocks or swap_space"):
        zeros((1 << 60,), torch.float32, CPU)

"""Memory for caches costs nothing before it is used."""

import re
from pathlib import Path

import pytest
import torch

from inflight_engine.execution.memory.zeros import zeros

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


def test_a_cache_larger_than_there_is_address_space_says_what_to_lower():
    with pytest.raises(MemoryError, match="lower kv_cache_memory, num_kv_blocks or swap_space"):
        zeros((1 << 60,), torch.float32, CPU)

"""Memory for caches costs nothing before it is used, or is touched ahead."""

import platform
import re
import time
from pathlib import Path

import pytest
import torch

from inflight_engine.execution.memory.zeros import TouchedAhead, give_back, zeros

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


@pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < (5, 14), reason="madvise(2) of Linux 5.14"
)
def test_pages_touched_ahead_are_there_and_keep_what_they_hold():
    cache = zeros((64, 1 << 20), torch.float32, CPU)
    cache[0] = 1.0
    before = resident_bytes()
    touched = TouchedAhead(cache)
    end = time.monotonic() + 60
    while resident_bytes() - before < 240 << 20 and time.monotonic() < end:
        time.sleep(0.05)
    assert resident_bytes() - before > 240 << 20
    assert cache[0].all()
    assert not cache[1:].any()
    touched.stop()


def test_memory_that_is_given_back_while_it_is_touched_ahead_stays_free():
    cache = zeros((64, 1 << 20), torch.float32, CPU)
    touched = TouchedAhead(cache)
    touched.stop()
    give_back(cache)
    free = resident_bytes()
    time.sleep(0.1)
    assert resident_bytes() - free < 1 << 20


def test_a_cache_larger_than_there_is_address_space_says_what_to_lower():
    with pytest.raises(MemoryError, match="lower kv_cache_memory, num_kv_blocks or swap_space"):
        zeros((1 << 60,), torch.float32, CPU)

"""How long threads spin, by what the kernel says of their waits for a core."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.native.library import library
from tests.engine.native.variants import needs_kernels

pytestmark = needs_kernels
MS = 1_000_000
UNKNOWN, ALONE, CROWDED = 50_000, 2 * MS, 2_000
STEP = 2 * 12 * MS
"""Two threads in a step of 12 ms."""


def spinning_after(observations):
    """`observations`: (computed, delayed) in nanoseconds."""
    kernels = library()
    kernels.inflight_spinning_after.restype = ctypes.c_int64
    columns = [(ctypes.c_int64 * len(observations))(*column) for column in zip(*observations, strict=True)]
    return kernels.inflight_spinning_after(*(columns or [None, None]), ctypes.c_int64(len(observations)))


def test_threads_spin_for_a_little_before_anything_is_known():
    assert spinning_after([]) == UNKNOWN
    assert spinning_after([(STEP, 0)] * 3) == UNKNOWN


def test_threads_spin_for_long_while_each_has_a_core():
    assert spinning_after([(STEP, 0)] * 20) == ALONE


def test_one_late_thread_in_a_while_is_noise():
    assert spinning_after([(STEP, 0)] * 7 + [(STEP, 4 * MS)] + [(STEP, 0)] * 7) == ALONE


def test_a_pause_that_the_kernel_does_not_see_is_the_hypervisors_and_changes_nothing():
    assert spinning_after([(STEP, 0)] * 20 + [(100 * STEP, 0)]) == ALONE


def test_threads_hardly_spin_while_others_compute_on_their_cores_and_long_again_after_that():
    together = [(STEP, 0)] * 20 + [(2 * STEP, STEP)] * 20
    assert spinning_after(together) == CROWDED
    assert spinning_after(together + [(STEP, 0)] * 20) == ALONE


@pytest.mark.parametrize("before", [(STEP, 0), (STEP, STEP // 2)])
def test_between_the_two_it_stays_as_it_is(before):
    known = [before] * 20
    assert spinning_after([*known, *[(STEP, STEP * 7 // 100)] * 40]) == spinning_after(known)


def test_a_kernel_that_does_not_say_makes_threads_spin_for_a_little():
    assert spinning_after([(STEP, 0)] * 20 + [(STEP, -1)]) == UNKNOWN


@given(st.lists(st.tuples(st.integers(1, 10**10), st.integers(-1, 10**10)), max_size=50))
def test_threads_always_spin_for_one_of_three_times(observations):
    assert spinning_after(observations) in (UNKNOWN, ALONE, CROWDED)

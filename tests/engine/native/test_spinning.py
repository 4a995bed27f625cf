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


def spinning_after(observations, outlasted=0):
    """`observations`: (computed, delayed) in nanoseconds. `outlasted`: waits of the next run that were longer."""
    kernels = library()
    kernels.inflight_spinning_after.restype = ctypes.c_int64
    columns = [(ctypes.c_int64 * len(observations))(*column) for column in zip(*observations, strict=True)]
    return kernels.inflight_spinning_after(*(columns or [None, None]), ctypes.c_int64(len(observations)), outlasted)


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


def test_one_long_wait_in_a_run_is_noise_and_after_two_its_threads_spin_for_a_little():
    alone = [(STEP, 0)] * 20
    assert spinning_after(alone, outlasted=1) == ALONE
    assert spinning_after(alone, outlasted=2) == UNKNOWN
    assert spinning_after(alone, outlasted=150) == UNKNOWN


def test_long_waits_do_not_make_threads_spin_longer():
    together = [(2 * STEP, STEP)] * 20
    assert spinning_after(together, outlasted=150) == CROWDED
    assert spinning_after([], outlasted=150) == UNKNOWN


@pytest.mark.parametrize("before", [(STEP, 0), (STEP, STEP // 2)])
def test_between_the_two_it_stays_as_it_is(before):
    known = [before] * 20
    assert spinning_after([*known, *[(STEP, STEP * 7 // 100)] * 40]) == spinning_after(known)


def test_a_kernel_that_does_not_say_makes_threads_spin_for_a_little():
    assert spinning_after([(STEP, 0)] * 20 + [(STEP, -1)]) == UNKNOWN


@given(st.lists(st.tuples(st.integers(1, 10**10), st.integers(-1, 10**10)), max_size=50), st.integers(0, 200))
def test_threads_always_spin_for_one_of_three_times(observations, outlasted):
    assert spinning_after(observations, outlasted) in (UNKNOWN, ALONE, CROWDED)

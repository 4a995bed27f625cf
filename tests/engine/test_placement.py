"""Two processes share the CPUs they were given, without one in common, and only where they were given some."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.placement import place

MACHINE = 16


@given(st.integers(-1, 20) | st.none(), st.frozensets(st.integers(0, MACHINE - 1), min_size=1))
def test_the_engine_has_a_cpu_for_each_thread_and_the_api_process_the_rest(num_threads, allowed):
    placement = place(num_threads, allowed, MACHINE)
    if placement is None:
        assert num_threads is None or num_threads < 1 or num_threads >= len(allowed) or len(allowed) == MACHINE
    else:
        assert len(placement.engine) == num_threads
        assert placement.api
        assert placement.engine | placement.api == allowed
        assert not placement.engine & placement.api


def test_nothing_is_bound_on_cpus_that_are_not_its_own():
    assert place(2, frozenset(range(MACHINE)), MACHINE) is None


def test_nothing_is_bound_where_no_cpu_is_left_for_the_api_process():
    assert place(4, frozenset(range(4)), MACHINE) is None


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_bound_process_starts_bound_threads():
    program = (
        "import os; from threading import Thread; from inflight_engine.placement import bind; "
        "cpu = max(os.sched_getaffinity(0)); bind(frozenset({cpu})); seen = []; "
        "thread = Thread(target=lambda: seen.append(os.sched_getaffinity(0))); thread.start(); thread.join(); "
        "print(seen == [{cpu}])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "True\n"

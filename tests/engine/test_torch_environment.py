"""Settings that torch's libraries read once are made where a process starts, and can be given from outside."""

import os
import sys

import pytest

from inflight_engine.torch_environment import let_segments_grow, let_threads_sleep

NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


def test_a_policy_that_would_come_too_late_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", sys)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with pytest.raises(RuntimeError, match="imported already"):
        let_threads_sleep()


def test_a_policy_from_outside_stays(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    let_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "expandable_segments:True"),
        ({NEW: "backend:cudaMallocAsync"}, "backend:cudaMallocAsync"),
        ({OLD: ""}, None),
    ],
)
def test_segments_grow_unless_the_environment_configures_the_allocator(monkeypatch, given, expected):
    for name in (NEW, OLD):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    let_segments_grow()
    assert os.environ.get(NEW) == expected

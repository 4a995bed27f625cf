"""How torch takes memory of a GPU is settled where a process starts, and can be set from outside."""

import os

import pytest

from inflight_engine.cuda_memory import let_segments_grow

NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


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

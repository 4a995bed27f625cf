"""Variables of the environment that torch and its libraries read once: for the first lines of a process."""

from __future__ import annotations

import os
import sys

_POLICY = "OMP_WAIT_POLICY"
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def let_threads_sleep() -> None:
    """Let idle OpenMP threads sleep, unless the environment has an `OMP_WAIT_POLICY`. Call it where a process starts:
    the library reads the policy when torch is imported.

    By default the threads spin, which is a little quicker on an idle machine; where anything else wants the CPUs (the
    API process does, and so do a pod's neighbours) a spinning thread keeps its partner from running, and a step was
    seen to take ten times as long.

    Raises:
        RuntimeError: torch is imported already.
    """
    if _POLICY in os.environ:
        return
    if "torch" in sys.modules:
        raise RuntimeError(f"{_POLICY} has no effect any more: torch is imported already")
    os.environ[_POLICY] = "PASSIVE"


def let_segments_grow() -> None:
    """Let torch's allocator extend the segments that it has, unless the environment configures the allocator. Call it
    where a process starts: torch reads the variable when it first allocates.

    Steps of many sizes otherwise leave holes that fit no later step, in segments of fixed sizes: memory that is taken
    and cannot be used.
    """
    if not any(name in os.environ for name in _ALLOCATOR):
        os.environ[_ALLOCATOR[0]] = "expandable_segments:True"

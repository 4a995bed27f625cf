"""How torch takes memory of a GPU."""

from __future__ import annotations

import os

_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def let_segments_grow() -> None:
    """Let torch's allocator extend the segments that it has, unless the environment configures the allocator. Call it
    where a process starts: torch reads the variable when it first allocates.

    Steps of many sizes otherwise leave holes that fit no later step, in segments of fixed sizes: memory that is taken
    and cannot be used.
    """
    if not any(name in os.environ for name in _SETTINGS):
        os.environ[_SETTINGS[0]] = "expandable_segments:True"

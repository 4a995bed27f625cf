"""A profile of the engine at work, by torch's profiler: idle time between kernels, and the largest kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._C._autograd import DeviceType

from tools.bench.engine.in_process import Generated

_LARGEST = 15


def busy_share(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the share of the time from the first start to the last end that intervals cover; they may overlap.

    Raises:
        ValueError: no intervals.
    """
    ordered = sorted(intervals)
    if not ordered:
        raise ValueError("no kernel ran")
    first, end = ordered[0][0], ordered[0][0]
    busy = 0.0
    for start, stop in ordered:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return busy / (end - first)


def profile(work: Callable[[], Generated], device: str) -> dict[str, Any]:
    """Figures of what `work` runs.

    Returns:
        busy: share of the time in which a kernel runs. host_us: the loop's processor time of a step, which on a GPU
        includes waiting for steps that were launched. kernels: (name, us in all, calls) of the largest.
    """
    kind, activity = (
        (DeviceType.CUDA, torch.profiler.ProfilerActivity.CUDA)
        if device == "cuda"
        else (DeviceType.CPU, torch.profiler.ProfilerActivity.CPU)
    )
    with torch.profiler.profile(activities=[activity]) as profiler:
        started = time.thread_time()
        num_steps = work().num_steps
        host_seconds = time.thread_time() - started
        if device == "cuda":
            torch.cuda.synchronize()
    spans = [
        (event.time_range.start, event.time_range.end) for event in profiler.events() or () if event.device_type == kind
    ]
    times = sorted(
        (
            (event.key, getattr(event, f"self_{'device' if device == 'cuda' else 'cpu'}_time_total"), event.count)
            for event in profiler.key_averages()
        ),
        key=lambda each: -each[1],
    )
    kernels = [(name[:80], round(microseconds), calls) for name, microseconds, calls in times[:_LARGEST]]
    return {"busy": busy_share(spans), "host_us": 1e6 * host_seconds / num_steps, "kernels": kernels}

"""How long a device does nothing between kernels, from torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch._C._autograd import DeviceType


def busy_share(intervals: Iterable[tuple[float, float]]) -> float:
    """Of the time from the first start to the last end, what is covered by an interval; they may overlap.

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


def profile(work: Callable[[], None]) -> float:
    """The busy share of the GPU while `work` runs."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        work()
        torch.cuda.synchronize()
    return busy_share(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type == DeviceType.CUDA
    )

"""Policies by name: a new one is a file here and a line in `POLICIES`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from inflight_engine.scheduling.config import SchedulerConfig, ServiceClass
from inflight_engine.scheduling.policies.base import Policy
from inflight_engine.scheduling.policies.deadline import Deadline
from inflight_engine.scheduling.policies.fair import Fair
from inflight_engine.scheduling.policies.fcfs import Fcfs
from inflight_engine.scheduling.policies.priority import Priority
from inflight_engine.scheduling.policies.sjf import ShortestJobFirst

POLICIES: dict[str, Callable[[SchedulerConfig], Policy]] = {
    "fcfs": Fcfs,
    "sjf": ShortestJobFirst,
    "priority": Priority,
    "fair": Fair,
    "deadline": Deadline,
}


def default_policy(ttft_target: float | None, classes: Iterable[ServiceClass]) -> str:
    """`deadline` where there is a TTFT target to order by, else `fcfs`."""
    targets = [ttft_target, *(each.ttft_target for each in classes)]
    return "fcfs" if all(target is None for target in targets) else "deadline"

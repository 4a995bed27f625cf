"""Policies by name: a new one is a file here and a line in `POLICIES`."""

from __future__ import annotations

from collections.abc import Callable

from inflight_engine.scheduling.policies.base import Policy
from inflight_engine.scheduling.policies.deadline import Deadline
from inflight_engine.scheduling.policies.fair import Fair
from inflight_engine.scheduling.policies.fcfs import Fcfs
from inflight_engine.scheduling.policies.priority import Priority
from inflight_engine.scheduling.policies.sjf import ShortestJobFirst
from inflight_settings.scheduling import SchedulingSettings

POLICIES: dict[str, Callable[[SchedulingSettings], Policy]] = {
    "fcfs": Fcfs,
    "sjf": ShortestJobFirst,
    "priority": Priority,
    "fair": Fair,
    "deadline": Deadline,
}

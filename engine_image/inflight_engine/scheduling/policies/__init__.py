"""Policies by name: a new one is a file here and a line in `POLICIES`."""

from __future__ import annotations

from collections.abc import Callable

from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.policies.base import Policy
from inflight_engine.scheduling.policies.fcfs import Fcfs

POLICIES: dict[str, Callable[[SchedulerConfig], Policy]] = {
    "fcfs": Fcfs,
}

"""Measurements from outside the operator: its processes, its metrics page, and the API server's audit log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from time import monotonic

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tools.measure.processes import process_cpu

WRITES = ("create", "update", "patch", "delete", "deletecollection")
"""Verbs of the audit log that change something."""

METRICS = (
    "inflight_operator_leader",
    "inflight_operator_reconcile_total",
    "inflight_operator_reconcile_duration_seconds_sum",
    "inflight_operator_scrapes_total",
)


Values = dict[tuple[str, str], float]
"""Values by the name of a sample and the value of its one label, empty without a label."""


def parse_values(text: str) -> Values:
    """The samples of an operator's metrics page."""
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def operator_values(http: aiohttp.ClientSession, port: int) -> Values:
    """Reads the `METRICS` that the operator at `port` has.

    Raises:
        aiohttp.ClientError, TimeoutError: it does not answer.
    """
    query = [("name[]", name) for name in METRICS]
    timeout = aiohttp.ClientTimeout(total=10)
    async with http.get(f"http://127.0.0.1:{port}/metrics", params=query, timeout=timeout) as response:
        return parse_values(await response.text())


@dataclass(frozen=True, slots=True)
class Call:
    """A request of an operator, from the audit log.

    Attributes:
        user: who sent it.
        namespace, name: of the object; empty where it has none.
        code: HTTP status of the answer.
        time: of the answer, in seconds since the epoch.
    """

    verb: str
    resource: str
    user: str
    namespace: str
    name: str
    code: int
    time: float

    @property
    def is_write(self) -> bool:
        return self.verb in WRITES


def parse_call(line: str) -> Call:
    """Reads a line of the audit log."""
    event = json.loads(line)
    reference = event.get("objectRef", {})
    resource = "/".join(part for part in (reference.get("resource", "-"), reference.get("subresource")) if part)
    return Call(
        event["verb"],
        resource,
        event["user"]["username"],
        reference.get("namespace", ""),
        reference.get("name", ""),
        event.get("responseStatus", {}).get("code", 0),
        datetime.fromisoformat(event["stageTimestamp"]).timestamp(),
    )


@dataclass
class AuditLog:
    """Follows the file; a line that is not whole yet is left for the next time."""

    path: Path
    _offset: int = field(default=0, init=False)

    def new_calls(self) -> list[Call]:
        """Returns the calls since the last time."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [parse_call(line) for line in whole.decode().splitlines()]


def longest_unrenewed(calls: Iterable[Call]) -> float | None:
    """Longest time between two writes of a Lease, in seconds; None with fewer than two."""
    times = [call.time for call in calls if call.is_write and call.resource == "leases" and call.code < 400]
    return max((after - before for before, after in pairwise(times)), default=None)


def writes_by_kind(calls: Iterable[Call]) -> Counter[str]:
    """Writes as `VERB RESOURCE`; those that the API server refused are marked with the status."""
    return Counter(
        f"{call.verb} {call.resource}" + ("" if call.code < 400 else f" ({call.code})")
        for call in calls
        if call.is_write
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one moment; rates are differences of two.

    Attributes:
        time: steady.
        cpu: seconds used so far, by process.
        machine: seconds used so far by all processes of the machine.
        values: of the operator's metrics.
        pages: metrics pages that the fake engines have answered.
    """

    time: float
    cpu: dict[str, float]
    machine: float
    values: Values
    pages: int

    @staticmethod
    def now(pids: dict[str, int], machine: float, values: Values, pages: int) -> Reading:
        return Reading(monotonic(), {name: process_cpu(pid) for name, pid in pids.items()}, machine, values, pages)

"""Result of a wake storm, from the lines of `tools.load.storm` and the times at which replicas were ordered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tools.measure.report import rounded_percentile

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Request:
    """A request.

    Attributes:
        outcome: answered, refused (each response was a 503 with Retry-After) or lost.
        first_token: seconds from its begin; None without one.
        refusals: clean refusals that it got before its outcome.
        why: why it was not answered.
    """

    service: str
    outcome: str
    first_token: float | None = None
    refusals: int = 0
    why: str = ""


@dataclass(frozen=True)
class Storm:
    """A storm of waking services.

    Attributes:
        begun: begin of the first request, in seconds since the epoch.
        expected: requests that were to be sent.
        ordered: when each service's replica was first seen to be ordered, seconds since the epoch.
        memory: most bytes that the processes of each pod of operator and gateway had resident.
    """

    services: int
    begun: float
    expected: int
    requests: tuple[Request, ...]
    ordered: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)

    def count(self, outcome: str) -> int:
        return sum(one.outcome == outcome for one in self.requests)

    @property
    def woken(self) -> int:
        """Services whose replica was seen to be ordered or that answered a request: a service may be answered and back
        at zero between two updates."""
        return len(self.ordered.keys() | {one.service for one in self.requests if one.outcome == "answered"})

    @property
    def last_order(self) -> float | None:
        """Seconds from the first request to the order of the last replica; None if one was not seen."""
        if len(self.ordered) < self.services:
            return None
        return max(self.ordered.values()) - self.begun

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the storm did not pass; it passed when there are none. Clean refusals are no problem, but some request
        must be answered."""
        lost = Counter(one.why for one in self.requests if one.outcome == "lost")
        found = [f"lost: {why}" + (f" (x{times})" if times > 1 else "") for why, times in lost.items()]
        if missing := self.expected - len(self.requests):
            found.append(f"{missing} requests are unaccounted for")
        if not self.count("answered"):
            found.append("no request was answered")
        if self.woken < self.services:
            found.append(f"{self.woken} of {self.services} services were woken")
        return tuple(found)

    def as_json(self) -> dict[str, Any]:
        """The figures, for a file."""
        waits = [one.first_token for one in self.requests if one.outcome == "answered" and one.first_token is not None]
        return {
            "services": self.services,
            "requests": self.expected,
            "answered": self.count("answered"),
            "answered_at_the_first_attempt": sum(
                one.outcome == "answered" and not one.refusals for one in self.requests
            ),
            "refused_to_the_end": self.count("refused"),
            "lost": self.count("lost"),
            "clean_refusals": sum(one.refusals for one in self.requests),
            "first_token_p50_s": rounded_percentile(waits, 0.5),
            "first_token_p95_s": rounded_percentile(waits, 0.95),
            "first_token_longest_s": rounded_percentile(waits, 1.0),
            "last_replica_ordered_after_s": None if self.last_order is None else round(self.last_order, 2),
            "memory_mib": {pod: round(size / MEBIBYTE) for pod, size in sorted(self.memory.items())},
            "problems": list(self.problems),
        }

    def text(self) -> str:
        """The figures, for a terminal."""
        facts = self.as_json()
        lines = [
            f"  {name.replace('_', ' '):<32} {value}"
            for name, value in facts.items()
            if not isinstance(value, dict | list)
        ]
        lines += [f"  {f'most memory of {pod}':<32} {size} MiB" for pod, size in facts["memory_mib"].items()]
        return "\n".join([*lines, *(f"  PROBLEM: {problem}" for problem in self.problems)])


def storm_of(output: str, services: int, ordered: Mapping[str, float], memory: Mapping[str, int]) -> Storm:
    """Reads the lines that `tools.load.storm` printed; other lines are ignored.

    Raises:
        ValueError: the requests never began.
    """
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    head = next((line for line in lines if "requests" in line), None)
    if head is None:
        raise ValueError(f"the requests never began: {output[-500:]}")
    requests = tuple(_request(line) for line in lines if "outcome" in line)
    return Storm(services, head["begun"], head["requests"], requests, ordered, memory)


def _request(line: Mapping[str, Any]) -> Request:
    first = line["first_token"]
    return Request(
        service=line["service"],
        outcome=line["outcome"],
        first_token=None if first is None else first - line["begun"],
        refusals=line["refusals"],
        why=line["why"],
    )

"""Results of a simulation: each request's times, the use of slots, queue and KV cache over time."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from inflight_simulator.arrivals import Arrival

NEVER = -1.0
"""A time that has not been reached."""


class Phase(StrEnum):
    """State of an admitted request."""

    PREFILL = "prefill"
    DECODE = "decode"
    PADDING = "padding"
    """The request has all its tokens, but its static batch continues."""
    PREEMPTED = "preempted"
    """The request lost its slot and waits for another one."""


class Span(NamedTuple):
    """A time of a request. Each prefill chunk is one; so is a decode, from the token before it to its last.

    Attributes:
        slot: while PREEMPTED the one that was lost.
        tokens: computed in it: prompt (and lost) tokens in PREFILL, output tokens in DECODE, else 0.
    """

    request_id: int
    slot: int
    phase: Phase
    start_s: float
    end_s: float
    tokens: int


@dataclass(slots=True)
class Outcome:
    """Times of a request, on the simulation's clock.

    Attributes:
        request_id: its place in the order of arrival, refused ones counted.
        admitted_s: start of the step in which it first got a slot.
        first_token_s: end of the step that gave its first token.
        finished_s: when it left, with all its tokens.
        longest_gap: longest time in seconds between two of its tokens; 0 where it has only one.
    """

    request_id: int
    arrival: Arrival
    admitted_s: float
    first_token_s: float = NEVER
    finished_s: float = NEVER
    longest_gap: float = 0.0
    num_preemptions: int = 0

    @property
    def service_latency(self) -> float:
        return self.finished_s - self.admitted_s

    @property
    def e2e_latency(self) -> float:
        return self.finished_s - self.arrival.arrival_s

    @property
    def ttft(self) -> float:
        return self.first_token_s - self.arrival.arrival_s

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first; None when there is none."""
        after_first = self.arrival.output_tokens - 1
        return (self.finished_s - self.first_token_s) / after_first if after_first else None


class Refusal(NamedTuple):
    """A request that could never run."""

    request_id: int
    arrival: Arrival
    reason: str


@dataclass(slots=True)
class Series:
    """A row for each step, and one when the engine becomes idle: the state from `times` on.

    Attributes:
        times: seconds at the step's start.
        running: requests that hold a slot.
        kv_usage: share of the KV blocks in use, 0..1.
    """

    times: array[float] = field(default_factory=lambda: array("d"))
    running: array[int] = field(default_factory=lambda: array("q"))
    kv_usage: array[float] = field(default_factory=lambda: array("d"))

    def append(self, time: float, running: int, kv_usage: float) -> None:
        self.times.append(time)
        self.running.append(running)
        self.kv_usage.append(kv_usage)


@dataclass(slots=True)
class Run:
    """A whole simulation.

    Attributes:
        max_num_seqs: number of slots.
        outcomes: of the requests that were served, in order of leaving.
        stalls: intervals in which every decode waited for prefills, in seconds.
        num_steps: forward passes.
        num_loaded: KV blocks that starts loaded from host memory.
        prefix_queries, prefix_hits: prompt tokens looked up in the prefix cache, and found there.
    """

    max_num_seqs: int
    outcomes: list[Outcome] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    timeline: list[Span] = field(default_factory=list)
    stalls: list[tuple[float, float]] = field(default_factory=list)
    series: Series = field(default_factory=Series)
    num_steps: int = 0
    num_preemptions: int = 0
    num_loaded: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0

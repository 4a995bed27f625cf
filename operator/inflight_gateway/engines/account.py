"""The gateway's account of one engine: its last sample and the requests sent there."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from math import exp
from typing import TYPE_CHECKING

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.pick.growth import Growing, Growth
from inflight_gateway.pick.load import (
    STALE_S,
    EndpointLoad,
    answer_tokens_per_second,
    prefill_tokens_per_second,
)
from inflight_gateway.tenants.answer_lengths import Answer
from inflight_gateway.types import Endpoint, EngineSample

if TYPE_CHECKING:
    from inflight_gateway.engines.fleet import Fleet


FLOW_S = 10.0
"""Time constant of the mean of prompt tokens a second."""

LEAST_FLOW_S = 1.0
"""Shortest time, in seconds, that a mean is taken of."""

LEAST_FLOW = 1e-6
"""Requests a second below which the next one counts as the first."""


@dataclass(slots=True, eq=False)
class Flow:
    """Means of the prompts that are sent, since the first one.

    Attributes:
        requests, tokens: a second, at `time`, as if none had been sent for ever before.
        begin: when the first one was sent.
    """

    requests: float = 0.0
    tokens: float = 0.0
    time: float = 0.0
    begin: float = 0.0

    def at(self, now: float) -> tuple[float, float]:
        """Returns the requests and their tokens a second."""
        kept = exp(min(0.0, self.time - now) / FLOW_S) / (1.0 - exp(min(-LEAST_FLOW_S, self.begin - now) / FLOW_S))
        return self.requests * kept, self.tokens * kept

    def add(self, tokens: int, now: float) -> None:
        kept = exp(min(0.0, self.time - now) / FLOW_S)
        if self.requests * kept < LEAST_FLOW:
            self.begin = now
        self.requests = self.requests * kept + 1.0 / FLOW_S
        self.tokens = self.tokens * kept + tokens / FLOW_S
        self.time = now

    def take_back(self, tokens: int) -> None:
        """Removes a request that was not taken."""
        self.requests = max(0.0, self.requests - 1.0 / FLOW_S)
        self.tokens = max(0.0, self.tokens - tokens / FLOW_S)


@dataclass(slots=True, eq=False)
class Sent:
    """A request in flight.

    Attributes:
        at: when it was sent to `address`, in seconds.
        tokens: prompt tokens that the engine has to compute.
        prompt_tokens, prefix, block_tokens, choices: see `RequestView`.
        answer: its answer under way, of each choice.
        awaited: its prompt is in the index as on its way.
    """

    service: ServiceKey
    address: str
    at: float
    tokens: int
    prompt_tokens: int
    prefix: tuple[int, ...]
    block_tokens: int
    answer: Answer
    choices: int = 1
    awaited: bool = False


@dataclass(slots=True)
class Account:
    """The requests and tokens sent to one engine, and what its last sample says.

    Attributes:
        sent: requests in flight, by id. in_flight: their choices, each of which takes a slot in the engine.
        sample: the last sample: base of the next attributes, up to `others`.
        since: time and tokens of the requests sent since its scrape began, at most `STALE_S` ago.
        since_tokens: sum of these tokens.
        pending: prompt tokens that the engine still has to compute at `pending_at`, at `rate` a second.
        flow: prompt tokens a second that were sent recently.
        others: choices in the sample that this picker did not send there.
        gone: the engine is no longer an endpoint.
        indexed: service whose index has prompts of this engine; None: it has none.
        growing: expected growth of each request in flight, by id, from the sample on; None: not computed since then.
        growth: growth of the KV cache's use by them; None: not computed since they changed.
        fleets: orders of replicas that this one is in.
    """

    sent: dict[str, Sent] = field(default_factory=dict)
    in_flight: int = 0
    sample: EngineSample | None = None
    since: deque[tuple[float, int]] = field(default_factory=deque)
    since_tokens: int = 0
    pending: float = 0.0
    pending_at: float = 0.0
    rate: float = 0.0
    flow: Flow = field(default_factory=Flow)
    others: int = 0
    gone: bool = False
    indexed: ServiceKey | None = None
    growing: dict[str, list[Growing]] | None = None
    growth: Growth | None = None
    fleets: tuple[Fleet, ...] = ()

    def place(self, address: str, now: float) -> None:
        """Updates the orders of replicas, after a change of this account."""
        for fleet in self.fleets:
            fleet.changed(address, now)

    def load(
        self,
        endpoint: Endpoint,
        now: float,
        cached_tokens: int = 0,
        answer_tokens: float = 0.0,
        loaded_tokens: int = 0,
        disk_tokens: int = 0,
        *,
        growing: bool = False,
    ) -> EndpointLoad:
        """Returns the load of the engine. Args: growing: fill in `growth`, O(requests in flight) after each sample."""
        if self.since:
            self.drop_before(now - STALE_S)
        if self.pending:
            self.advance(now)
        return EndpointLoad(
            endpoint,
            self.sample,
            self.in_flight,
            self.since_tokens,
            cached_tokens,
            max(0, self.known - round(self.pending)),
            self.others,
            self.growth_of() if growing else None,
            answer_tokens,
            min(loaded_tokens, cached_tokens),
            min(disk_tokens, cached_tokens),
        )

    def take(self, sample: EngineSample) -> None:
        """Applies a new sample: it includes requests sent before its scrape, unless their prompts were computed."""
        self.sample = sample
        self.drop_before(sample.at)
        self.rate = prefill_tokens_per_second(sample)
        self.pending, self.pending_at = float(sample.waiting_prompt_tokens), sample.at
        for at, tokens in self.since:
            self.advance(at)
            self.pending += tokens
        self.others = max(0, sample.running + sample.waiting - self.in_flight)
        self._progress(sample)
        self.growing = self.growth = None

    def _progress(self, sample: EngineSample) -> None:
        """Estimates the lengths of answers under way by their age, in total at most what the KV cache holds: requests
        that wait in the engine, or waited, have generated fewer tokens."""
        sent = [each for each in self.sent.values() if each.at < sample.at]
        generating = [each for each in sent if each.answer.generates]
        if not generating:
            return
        rate = answer_tokens_per_second(sample)
        by_age = rate * sum(each.choices * (sample.at - each.at) for each in generating)
        if sample.kv_cache_tokens:
            count = sum(each.choices for each in sent)
            held = sample.kv_utilization * sample.kv_cache_tokens * count / (count + self.others)
            rate *= min(1.0, max(0.0, held - sum(each.tokens for each in sent)) / by_age)
        for each in generating:
            each.answer.generated = rate * (sample.at - each.at)
            each.answer.lengths.progressed(sample.at)

    def advance(self, now: float) -> None:
        self.pending = max(0.0, self.pending - self.rate * max(0.0, now - self.pending_at))
        self.pending_at = max(now, self.pending_at)

    def prefill_share(self, now: float) -> float:
        """Returns the share of its recent time that the engine needed for prompts, at most 1."""
        _, flow = self.flow.at(now)
        if not flow:
            return 0.0
        return min(1.0, flow / self.rate) if self.rate > 0 else 1.0

    def send(self, at: float, tokens: int) -> None:
        self.flow.add(tokens, at)
        self.advance(at)
        self.pending += tokens
        self.since.append((at, tokens))
        self.since_tokens += tokens

    def take_back(self, at: float, tokens: int, now: float) -> None:
        """Removes a refused request that was sent at `at`; no figure includes it if a scrape came since."""
        if (at, tokens) in self.since:
            self.since.remove((at, tokens))
            self.since_tokens -= tokens
            self.flow.take_back(tokens)
            self.advance(now)
            self.pending = min(max(0.0, self.pending - tokens), float(self.known))

    def arrive(self, request_id: str, request: Sent) -> None:
        """Adds a request that is sent to this engine."""
        self.sent[request_id] = request
        self.in_flight += request.choices
        self.send(request.at, request.tokens)
        if self.growing is not None:
            self.growing[request_id] = _growing(request)
            self.growth = None

    def leave(self, request_id: str) -> None:
        """Removes a request that has ended, or was sent to another engine."""
        request = self.sent.pop(request_id, None)
        if request is not None:
            self.in_flight -= request.choices
        if self.growing is not None:
            self.growing.pop(request_id, None)
            self.growth = None

    def growth_of(self) -> Growth | None:
        """Returns the growth of the KV cache's use; None: this picker has no request there. Requests that it did not
        send count like those that it did."""
        if not self.sent:
            return None
        if self.growing is None:
            self.growing = {name: _growing(request) for name, request in self.sent.items()}
        if self.growth is None:
            growing = tuple(chain.from_iterable(self.growing.values()))
            self.growth = Growth(growing, (self.in_flight + self.others) / len(growing))
        return self.growth

    @property
    def known(self) -> int:
        """Prompt tokens of the sample's waiting requests and of requests sent since."""
        return self.since_tokens + (self.sample.waiting_prompt_tokens if self.sample else 0)

    def drop_before(self, time: float) -> None:
        while self.since and self.since[0][0] < time:
            self.since_tokens -= self.since.popleft()[1]


MOST_GROWING = 256
"""Most choices of a request whose growth is counted one by one: hardly any engine runs more of them at once."""


def _growing(request: Sent) -> list[Growing]:
    """Returns the growth of each choice; the choices share the prompt."""
    count = min(request.choices, MOST_GROWING)
    return [Growing(request.answer.left(), request.tokens / count + request.answer.generated)] * count

"""Report of a load: percentiles, throughput, errors, attainment, and whether the client was the bottleneck. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inflight_kubectl.load.drive import Load, Result

BUSY_SHARE = 0.85
"""Share of one processor core above which the client limits the results: Python uses one core at a time."""

LATE_SECONDS = 0.02
"""Seconds of event loop lag, or of TTFT added by the tunnel, from which the report warns."""

ADDED_SHARE = 0.2
"""Share of the mean TTFT of the client that the tunnel and the client may add to it without a warning."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Latency targets of the service, in seconds.

    Attributes:
        per_token: seconds that each token of a prompt adds to its TTFT target.
        own: True if the service sets them, else they are the operator's defaults.
    """

    ttft: float
    tpot: float
    per_token: float
    own: bool

    def ttft_of(self, prompt_tokens: int) -> float:
        """Returns the TTFT target of a prompt."""
        return self.ttft + self.per_token * prompt_tokens


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in seconds; nearest-rank percentiles."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Returns the distribution of values; None without any."""
        if not values:
            return None
        ordered = sorted(values)
        p50, p90, p95, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.95, 0.99))
        return cls(sum(ordered) / len(ordered), p50, p90, p95, p99, ordered[-1])


@dataclass(frozen=True, slots=True)
class Attainment:
    """Shares of all requests, including failed ones, that met a target."""

    targets: Targets
    ttft: float
    tpot: float
    both: float


@dataclass(frozen=True, slots=True)
class ClientSide:
    """Measurements that show whether the service or this program limits the results.

    Attributes:
        cpu_share: share of one core that this program used.
        loop_lag_p95: seconds of event loop lag.
        late_p95: seconds between due time and sending of requests, at a rate.
        added_ttft: seconds that the tunnel and the client added to the mean TTFT; None if unknown.
        limited: True if the service may have been faster than reported.
        said: the reason as text; empty if not limited.
    """

    cpu_share: float
    loop_lag_p95: float
    late_p95: float
    added_ttft: float | None
    limited: bool
    said: str


@dataclass(frozen=True, slots=True)
class Report:
    """Attributes:
    seconds: length of the load, until its last answer.
    stopped: True if it was stopped early.
    errors: descriptions and counts.
    """

    seconds: float
    stopped: bool
    requests: int
    succeeded: int
    errors: dict[str, int]
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    cached_share: float
    ttft: Spread | None
    tpot: Spread | None
    latency: Spread | None
    attainment: Attainment | None
    client: ClientSide


def report(load: Load, targets: Targets, engine_ttft: float | None) -> Report:
    """Returns the report of a load that has ended.

    Args:
        engine_ttft: mean TTFT of the same requests by the engines, in seconds; None if unknown.
    """
    whole = [one for one in load.results if not one.error]
    prompts, outputs = sum(one.prompt_tokens for one in whole), sum(one.output_tokens for one in whole)
    per_s = 1 / load.seconds if load.seconds > 0 else 0.0
    return Report(
        seconds=load.seconds,
        stopped=load.stopped,
        requests=len(load.results),
        succeeded=len(whole),
        errors=dict(Counter(one.error for one in load.results if one.error).most_common()),
        requests_per_s=len(whole) * per_s,
        prompt_tokens_per_s=prompts * per_s,
        output_tokens_per_s=outputs * per_s,
        cached_share=sum(one.cached_tokens for one in whole) / prompts if prompts else 0.0,
        ttft=Spread.of([one.ttft for one in whole if one.ttft is not None]),
        tpot=Spread.of([one.tpot for one in whole if one.tpot is not None]),
        latency=Spread.of([one.latency for one in whole]),
        attainment=_attainment(load.results, targets),
        client=_client(load, whole, engine_ttft),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Returns the value below or at which `share` of the values lie (nearest rank); `ordered` is not empty."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _attainment(results: Sequence[Result], targets: Targets) -> Attainment | None:
    if not results:
        return None
    ttft = [one.ttft is not None and one.ttft <= targets.ttft_of(one.prompt_tokens) for one in results]
    tpot = [not one.error and (one.tpot is None or one.tpot <= targets.tpot) for one in results]
    both = [first and then for first, then in zip(ttft, tpot, strict=True)]
    shares = [sum(kept) / len(results) for kept in (ttft, tpot, both)]
    return Attainment(targets, *shares)


def _client(load: Load, whole: Sequence[Result], engine_ttft: float | None) -> ClientSide:
    cpu = load.cpu / load.seconds if load.seconds > 0 else 0.0
    lag = percentile(sorted(load.lags), 0.95) if load.lags else 0.0
    late = percentile(sorted(one.sent - one.due for one in whole), 0.95) if whole else 0.0
    # From the time of sending: the wait for a free client is not caused by the tunnel.
    seen = [one.ttft - (one.sent - one.due) for one in whole if one.ttft is not None]
    added = max(0.0, sum(seen) / len(seen) - engine_ttft) if engine_ttft is not None and seen else None
    said = []
    if cpu >= BUSY_SHARE:
        said.append(f"this program used {cpu:.0%} of a core, and cannot use more than one")
    if lag >= LATE_SECONDS:
        said.append(f"this program came to answers up to {lag * 1000:.0f} ms late (p95)")
    if late >= LATE_SECONDS:
        said.append(f"requests were sent up to {late * 1000:.0f} ms late (p95): all clients were waiting for answers")
    if added is not None and added >= max(LATE_SECONDS, ADDED_SHARE * sum(seen) / len(seen)):
        said.append(f"{added * 1000:.0f} ms of the mean TTFT were spent between the engines and this program")
    return ClientSide(cpu, lag, late, added, bool(said), "; ".join(said))

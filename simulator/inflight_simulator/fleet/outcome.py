"""Results of a fleet simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inflight_simulator.fleet.requests import Floats

OUT_OF_TARGET_WINDOW_S = 10.0
OUT_OF_TARGET_SHARE = 0.99


class ReplicaCount(NamedTuple):
    """Replicas from a moment on.

    Attributes:
        ordered: last order of the scaler. ready: that take requests. existing: starting, ready or draining.
    """

    time_s: float
    ordered: int
    ready: int
    existing: int


@dataclass(frozen=True, slots=True, eq=False)
class FleetRun:
    """Results of a fleet simulation.

    Attributes:
        arrival_s, ttft, tpot: float64 [requests]: seconds; tpot is 0 for outputs of one token, and both are NaN for
            requests that were refused.
        ttft_target, tpot_target: float64 [requests]: seconds.
        replicas: a row at each change, in order of time.
        replica_hours: of all pods from their order to their end, up to the last arrival.
        preemptions: of all requests.
        refused: requests that the gateway refused or that are longer than the KV cache; they keep no target.
        refusals: those that the gateway refused, by code.
        tenants: of each request the name of its tenant; empty: requests have none.
        decisions: of the operator, as text.
        prefix_queries, prefix_hits: prompt tokens of started requests, and those of them that a prefix cache held; 0
            and 0 where no replica has one.
        reads, gaps: float64 [requests that were handed over], as in `RequestStates`; None: there is no prefill set.
    """

    arrival_s: Floats
    ttft: Floats
    tpot: Floats
    ttft_target: Floats
    tpot_target: Floats
    replicas: tuple[ReplicaCount, ...]
    replica_hours: float
    preemptions: int = 0
    refused: int = 0
    decisions: tuple[str, ...] = ()
    prefix_queries: int = 0
    prefix_hits: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)
    tenants: tuple[str, ...] = ()
    reads: Floats | None = None
    gaps: Floats | None = None

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of prompt tokens that were in a prefix cache; None: there is none."""
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else None

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """bool [requests]: True for each request that met both of its targets."""
        kept: npt.NDArray[np.bool_] = (self.ttft <= self.ttft_target) & (self.tpot <= self.tpot_target)
        return kept

    @property
    def attainment(self) -> float:
        """Share of requests that met their targets."""
        return float(self.kept.mean())

    @property
    def reversals(self) -> int:
        """Number of changes of direction of the ordered replicas."""
        steps = np.diff([row.ordered for row in self.replicas])
        signs = np.sign(steps[steps != 0])
        return int(np.count_nonzero(np.diff(signs)))

    @property
    def longest_out_of_target_s(self) -> float:
        """Seconds of the longest run of windows of 10 s, by arrival, of whose requests less than 99% kept their
        targets. A window in which nothing arrives neither ends a run nor counts by itself."""
        window = ((self.arrival_s - self.arrival_s[0]) // OUT_OF_TARGET_WINDOW_S).astype(np.int64)
        arrived = np.bincount(window)
        kept = np.bincount(window, weights=self.kept)
        longest, since = 0, None
        for index in np.flatnonzero(arrived).tolist():
            if kept[index] >= OUT_OF_TARGET_SHARE * arrived[index]:
                since = None
                continue
            since = index if since is None else since
            longest = max(longest, index + 1 - since)
        return longest * OUT_OF_TARGET_WINDOW_S

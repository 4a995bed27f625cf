"""Counts of requests that met their latency targets, from the histograms that engines export."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from inflight_base.page.histogram import Histogram
from inflight_operator.observe.metrics import Sample


@dataclass(frozen=True, slots=True)
class Counted:
    """Observations of one latency, and how many of them were within its target: linear within a bucket, so fractional
    if the target is not a bucket bound."""

    total: float = 0.0
    within: float = 0.0

    def plus(self, now: Histogram, before: Histogram, target: float) -> Counted:
        """This count plus the growth of a histogram. `target`: seconds."""
        if not now.follows(before):
            return Counted(self.total + now.count, self.within + now.count_within(target))
        if now.count == before.count:
            return self
        within = now.count_within(target) - before.count_within(target)
        return Counted(self.total + now.count - before.count, self.within + max(0.0, within))


@dataclass(frozen=True, slots=True)
class Attainment:
    """Counts of one service, since the operator first saw its pods.

    Attributes:
        ttft: first tokens.
        tpot: finished requests of two tokens or more, by their mean time per output token.
        seen: histograms of TTFT and TPOT when they were last counted, by the uid of the pod.
    """

    ttft: Counted = field(default_factory=Counted)
    tpot: Counted = field(default_factory=Counted)
    seen: Mapping[str, tuple[Histogram, Histogram]] = field(default_factory=dict)

    def with_samples(
        self, fresh: Mapping[str, Sample], alive: Collection[str], ttft_target: float, tpot_target: float
    ) -> Attainment:
        """This count plus the growth since the last sample of each pod; a new pod counts from its first sample.

        Args:
            fresh: newest samples by uid.
            alive: uids of the existing pods; others are removed.
            ttft_target, tpot_target: seconds.
        """
        ttft, tpot = self.ttft, self.tpot
        seen = {uid: counted for uid, counted in self.seen.items() if uid in alive}
        for uid, sample in fresh.items():
            before = seen.get(uid)
            if before is not None and before[0] is sample.ttft:
                continue  # no new sample
            if before is not None:
                ttft = ttft.plus(sample.ttft, before[0], ttft_target)
                tpot = tpot.plus(sample.tpot, before[1], tpot_target)
            seen[uid] = (sample.ttft, sample.tpot)
        return Attainment(ttft, tpot, seen)

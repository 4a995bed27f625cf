"""Lead time of a new replica, by phase: learned from the pods that started, by engine and node."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from inflight_operator.observe.metrics import Sample
from inflight_operator.observe.pods import PodView

RECENT = 16
"""Remembered starts of a service."""

RECENT_ON_NODE = 5
"""Last starts on a node that count for the next one there: the first one had neither the image nor the model."""

REPORT_SECONDS = 30.0
"""Seconds after Ready in which the endpoint and the first metrics of a pod are awaited."""

Basis = Literal["Node", "Source", "Fleet", "Default"]
"""Starts that an estimate is from: those of this model on the nodes of the service, of this model anywhere, of all
models; none."""


class Phases(NamedTuple):
    """Seconds of each phase of a start.

    Attributes:
        scheduled: from the creation of the pod until it has a node.
        image: until the engine's container runs: image pulls and init containers.
        weights: that the engine takes to read the model; 0 for engines that do not report them.
        engine: the rest until the pod is Ready.
        endpoints: until the Service lists it.
    """

    scheduled: float
    image: float
    weights: float
    engine: float
    endpoints: float

    @property
    def total(self) -> float:
        return sum(self)


DEFAULT = Phases(0.0, 20.0, 20.0, 20.0, 0.0)
"""Expected before the first replica was seen to start."""


class Start(NamedTuple):
    """The start of a pod: its node, and the seconds of each phase as in `Phases`; None where they are not known."""

    node: str
    scheduled: float | None
    image: float
    weights: float
    engine: float
    endpoints: float | None

    @property
    def phases(self) -> dict[str, float | None]:
        """Seconds by the name of the phase."""
        return dict(zip(Phases._fields, self[1:], strict=True))

    @property
    def running(self) -> float:
        """Seconds from the start of the container until Ready."""
        return self.weights + self.engine


class Known(NamedTuple):
    """Medians of some starts, by phase; None where none of them tells."""

    starts: int
    phases: tuple[float | None, ...]


NOTHING = Known(0, (None,) * len(Phases._fields))


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Starts of the other services of this operator.

    Attributes:
        same: those of the same engine and model.
        fleet: all of them.
    """

    same: Known = NOTHING
    fleet: Known = NOTHING


LONG_START = 20.0
"""Seconds from the start of a container after which a pod that is not Ready starts for long: its progress is shown."""


def starts_for_long(pod: PodView, moment: float) -> bool:
    """Returns True for a pod whose engine runs and is not Ready for long. Args: moment: seconds since the epoch."""
    waits = pod.running_since is not None and moment - pod.running_since >= LONG_START
    return waits and bool(pod.ip) and not pod.ready and not pod.deleting


class Loading(NamedTuple):
    """Progress of an engine that reads its model.

    Attributes:
        read, total: bytes.
        seconds: since it began.
    """

    read: float
    total: float
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes per second, from its begin."""
        return self.read / self.seconds

    @property
    def left(self) -> float | None:
        """Seconds until all is read, at that rate; None before anything is."""
        return (self.total - self.read) / self.rate if self.read else None


def loading_of(sample: Sample) -> Loading | None:
    """Returns the progress on an engine's page; None where it has none, or an impossible one."""
    read, total, seconds = sample.loading_read_bytes, sample.loading_total_bytes, sample.loading_seconds
    if read is None or total is None or seconds is None or read > total:
        return None
    return Loading(read, total, seconds)


@dataclass(frozen=True, slots=True)
class LeadTime:
    """Expected start of a replica. Attributes: starts: number of starts it is from."""

    phases: Phases = DEFAULT
    starts: int = 0
    basis: Basis = "Default"

    def remaining(self, pod: PodView, moment: float, loading: Loading | None = None) -> float:
        """Returns the seconds until a pod that starts takes requests: at least what its engine says.

        Args:
            moment: seconds since the epoch.
            loading: progress of its engine; None: not known.
        """
        scheduled, image, weights, engine, endpoints = self.phases
        if pod.running_since is not None:
            said = 0.0 if loading is None else loading.left or 0.0
            return max(said, _left(weights + engine, pod.running_since, moment)) + endpoints
        if pod.scheduled_since is not None:
            return _left(image, pod.scheduled_since, moment) + weights + engine + endpoints
        return _left(scheduled, pod.created, moment) + image + weights + engine + endpoints


def _left(seconds: float, since: float, moment: float) -> float:
    return max(0.0, seconds - (moment - since))


@dataclass(frozen=True, slots=True)
class StartUps:
    """Starts of a service's pods, of one engine. A start that failed, restarted its container, or waited for a node for
    longer than the limit of a start-up teaches nothing about the next one; nor does one whose image or engine seems to
    have taken longer: something was missing and came, or the pod was ready before.

    Attributes:
        engine: identity of the engine and its model, `Policy.engine`.
        starts: the last `RECENT` of them, oldest first.
        listed: pods that are not counted yet, by uid, with the time from which the Service lists them, seconds since
            the epoch: None before they are Ready, inf while it does not, -inf if it did when they were first seen.
        counted: uids of existing pods that are counted, or never will be.
        restored: they are from the status: pods that are ready count no more.
    """

    engine: str = ""
    starts: tuple[Start, ...] = ()
    listed: Mapping[str, float | None] = field(default_factory=dict)
    counted: frozenset[str] = frozenset()
    restored: bool = False

    def with_pods(
        self,
        engine: str,
        pods: Sequence[PodView],
        listed: Collection[str],
        samples: Mapping[str, Sample],
        limit: float,
        moment: float,
    ) -> StartUps:
        """Returns these starts with those of pods that have become ready; each pod counts once while it exists.

        Args:
            engine: identity of the engine in the spec; pods that exist when it changes are of the earlier one.
            listed: uids of the pods that the Service lists.
            samples: fresh metrics, by uid.
            limit: seconds that a pod may take to start.
            moment: seconds since the epoch.
        """
        uids = {pod.uid for pod in pods}
        if engine != self.engine:
            return StartUps(engine, counted=frozenset(uids))
        counted = self.counted & uids
        if self.restored:
            counted |= {pod.uid for pod in pods if pod.ready_since is not None}
        waiting: dict[str, float | None] = {}
        new: list[tuple[float, Start]] = []
        for pod in pods:
            if pod.uid in counted:
                continue
            if pod.restarts or pod.deleting or pod.phase in ("Failed", "Succeeded"):
                counted |= {pod.uid}
                continue
            if pod.ready_since is None or pod.running_since is None:
                waiting[pod.uid] = None
                continue
            since = self.listed.get(pod.uid, -math.inf)
            if pod.uid not in listed:
                since = math.inf
            elif since is None:
                since = pod.ready_since
            elif since == math.inf:
                since = moment
            waiting[pod.uid] = since
            if (since < math.inf and pod.uid in samples) or moment - pod.ready_since > REPORT_SECONDS:
                del waiting[pod.uid]
                counted |= {pod.uid}
                start = _start(pod, samples.get(pod.uid), since, limit)
                if max(start.image, start.running) <= limit:
                    new.append((pod.ready_since, start))
        kept = (*self.starts, *(start for _, start in sorted(new, key=lambda one: one[0])))[-RECENT:]
        after = StartUps(engine, kept, waiting, counted)
        return self if after == self else after

    @property
    def p95(self) -> float | None:
        """Seconds from the start of the container to Ready (nearest rank); None before the first start."""
        if not self.starts:
            return None
        return sorted(start.running for start in self.starts)[math.ceil(0.95 * len(self.starts)) - 1]

    def lead_time(self, nodes: Collection[str], elsewhere: Elsewhere) -> LeadTime:
        """Returns the expected start of a pod, each phase by the nearest starts that tell it: on the nodes, of this
        service, of the same engine and model in other services, of other ones.

        Args:
            nodes: where the pod is, or is likely to be.
        """
        there = [one for node in nodes if (one := known(self._on(node), RECENT_ON_NODE)).starts]
        levels: list[tuple[Basis, Known]] = [
            ("Node", Known(sum(one.starts for one in there), _medians([one.phases for one in there]))),
            ("Source", known(self.starts)),
            ("Source", elsewhere.same),
            ("Fleet", elsewhere.fleet),
            ("Default", Known(0, DEFAULT)),
        ]
        phases = [
            next(value for _, level in levels if (value := level.phases[at]) is not None) for at in range(len(DEFAULT))
        ]
        basis, nearest = next(one for one in levels if one[1].phases[_ENGINE] is not None)
        return LeadTime(Phases(*phases), nearest.starts, basis)

    def _on(self, node: str) -> list[Start]:
        return [start for start in self.starts if start.node == node]


_ENGINE = Phases._fields.index("engine")


def known(starts: Sequence[Start], most: int = RECENT) -> Known:
    """Returns the medians of the last `most` starts."""
    recent = starts[-most:]
    return Known(len(recent), _medians([start[1:] for start in recent]))


def _medians(rows: Sequence[Sequence[float | None]]) -> tuple[float | None, ...]:
    if not rows:
        return NOTHING.phases
    return tuple(_median(column) for column in zip(*rows, strict=True))


def _median(column: Iterable[float | None]) -> float | None:
    return _middle(sorted(seconds for seconds in column if seconds is not None))


def _start(pod: PodView, sample: Sample | None, listed_at: float, limit: float) -> Start:
    """Args: listed_at: as in `StartUps.listed`."""
    assert pod.ready_since is not None
    assert pod.running_since is not None
    placed = pod.created if pod.scheduled_since is None else pod.scheduled_since
    waited = None if pod.scheduled_since is None else max(0.0, placed - pod.created)
    took = max(0.0, pod.ready_since - pod.running_since)
    weights = min(took, (sample.weights_seconds or 0.0) if sample is not None else 0.0)
    return Start(
        node=pod.node,
        scheduled=None if waited is not None and waited > limit else waited,
        image=max(0.0, pod.running_since - placed),
        weights=weights,
        engine=took - weights,
        endpoints=max(0.0, listed_at - pod.ready_since) if math.isfinite(listed_at) else None,
    )


class _Medians:
    """Medians over services of their medians: each service counts alike. A new service costs no look at the others."""

    def __init__(self) -> None:
        self._starts = 0
        self._columns: list[list[float]] = [[] for _ in Phases._fields]
        """Sorted, by phase."""

    def add(self, one: Known) -> None:
        self._starts += one.starts
        for column, seconds in zip(self._columns, one.phases, strict=True):
            if seconds is not None:
                insort(column, seconds)

    def remove(self, one: Known) -> None:
        self._starts -= one.starts
        for column, seconds in zip(self._columns, one.phases, strict=True):
            if seconds is not None:
                del column[bisect_left(column, seconds)]

    @property
    def known(self) -> Known:
        return Known(self._starts, tuple(_middle(column) for column in self._columns))


def _middle(column: Sequence[float]) -> float | None:
    half = len(column) // 2
    return (column[half] + column[~half]) / 2 if column else None


class FleetStartUps:
    """Starts of all services of one operator, of their latest rounds."""

    def __init__(self) -> None:
        self._of: dict[Hashable, tuple[StartUps, Known]] = {}
        self._fleet = _Medians()
        self._by_engine: dict[str, _Medians] = defaultdict(_Medians)

    def note(self, key: Hashable, startups: StartUps) -> None:
        """Records the starts of a service."""
        noted = self._of.get(key)
        if noted is not None and noted[0] is startups:
            return
        self.forget(key)
        if startups.starts:
            found = known(startups.starts)
            self._of[key] = startups, found
            self._fleet.add(found)
            self._by_engine[startups.engine].add(found)

    def forget(self, key: Hashable) -> None:
        startups, found = self._of.pop(key, (None, NOTHING))
        if startups is not None:
            self._fleet.remove(found)
            of_engine = self._by_engine[startups.engine]
            of_engine.remove(found)
            if not of_engine.known.starts:
                del self._by_engine[startups.engine]

    def elsewhere(self, engine: str) -> Elsewhere:
        """Returns what a service knows from others that has no starts of its own. Args: engine: as in
        `StartUps.engine`."""
        same = self._by_engine.get(engine)
        return Elsewhere(NOTHING if same is None else same.known, self._fleet.known)

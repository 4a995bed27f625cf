"""State of the decisions for one service, carried from round to round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from inflight_base.manifest import Manifest
from inflight_operator.api.spec import InferenceServiceSpec
from inflight_operator.api.status import BracketStatus, CorrectionStatus, FenceStatus, PrefetchStatus, StartStatus
from inflight_operator.api.types import InferenceService, ObjectMeta
from inflight_operator.decide.decision import Reason
from inflight_operator.decide.prefetch import Progress
from inflight_operator.decide.replicas.autopilot import DemandMemory
from inflight_operator.decide.replicas.behavior import ScalingHistory
from inflight_operator.decide.replicas.demand import DemandHistory
from inflight_operator.decide.replicas.start_up import Start, StartUps
from inflight_operator.decide.status.conditions import WeightsRead
from inflight_operator.decide.tuning.model import LEAST_MEMORY, TIGHTEST
from inflight_operator.decide.tuning.types import Bracket, Fence, TuningPolicy, TuningState
from inflight_operator.reconcile.policy import Policy
from inflight_operator.render.plan import ChildPlan, Settings
from inflight_settings.limits import HIGHEST_LIMITS, Knob, Limits, LimitsInForce


@dataclass(frozen=True, slots=True)
class Rendered:
    """Children of the last rendering: the same objects are returned until their inputs change. The status that the
    service had then is none of them."""

    spec: InferenceServiceSpec
    metadata: ObjectMeta
    settings: Settings
    plan: ChildPlan
    children: tuple[Manifest, ...]

    def made_of(self, service: InferenceService, settings: Settings, plan: ChildPlan) -> bool:
        same = service.spec is self.spec or service.spec == self.spec
        return same and (service.metadata, settings, plan) == (self.metadata, self.settings, self.plan)


@dataclass(frozen=True, slots=True)
class CanaryInForce:
    """Limits of the canary pod."""

    uid: str
    name: str
    in_force: LimitsInForce


@dataclass(frozen=True, slots=True)
class Memory:
    """State of the decisions for one service.

    All of it except the peaks of the last week can be rebuilt from the status, the children and the engines; apart
    from them, a restart of the operator only means that windows fill again.

    Attributes:
        uid: uid of the service; another uid means another service of the same name.
        engine: model, accelerator and release of the engines that the tuning state belongs to; see `engine_of`.
        replicas: ordered from the Deployment.
        limits: limits in force on the engines.
        before_override: the limits that return at the end of an override; None while none is in force.
        canary: the pod with trial limits, and these limits with their own revision; None without a canary.
        first_revision: revision to continue with, once, when engines are found to have a newer one: calendar seconds
            at the start, which are above any revision of an earlier operator process.
        scaling, tuning: state of earlier decisions.
        demand: recent demand of the service.
        needed: replicas needed, recently and in the last week.
        tuning_reason: the reason of the current limits: the last one based on measurements.
        startups: starts of pods.
        routed_since: since when the Service has listed a ready pod, on the steady clock; None while it does not.
        waking: replicas were ordered for held requests, and none is ready yet.
        moving: ready pods that the service had when a newer engine release began to roll out, and needs again; None
            without a rollout.
        left_at: since when the gateway serves the service although it left the gateway, on the steady clock.
        digests: version of the model by rollout, as its first ready pod reported it, the newest at the end.
        prefetch: progress of fetching the model before engines need it; None for a service that does not ask for it.
        weights: how the weights of pods came, by uid, where engines ask each other for them.
        rendered: the children.
    """

    uid: str
    engine: str
    replicas: int
    limits: LimitsInForce
    first_revision: int
    tuning: TuningState
    scaling: ScalingHistory = field(default_factory=ScalingHistory)
    demand: DemandHistory = field(default_factory=DemandHistory)
    needed: DemandMemory = field(default_factory=DemandMemory)
    before_override: Limits | None = None
    canary: CanaryInForce | None = None
    tuning_reason: Reason | None = None
    startups: StartUps = field(default_factory=StartUps)
    routed_since: float | None = None
    waking: bool = False
    moving: int | None = None
    left_at: float | None = None
    digests: tuple[tuple[str, str], ...] = ()
    prefetch: Progress | None = None
    weights: Mapping[str, WeightsRead] = field(default_factory=dict)
    rendered: Rendered | None = None

    @property
    def revision(self) -> int:
        """The highest revision sent to any pod."""
        return max(self.limits.revision, self.canary.in_force.revision if self.canary is not None else 0)


def engine_of(policy: Policy, image: str) -> str:
    """Returns what measurements apply to: they do not apply to another model, image or accelerator."""
    return f"{policy.engine}/{image}"


def first_memory(
    service: InferenceService, policy: Policy, ordered: int | None, now: float, at: datetime, image: str = ""
) -> Memory:
    """Returns the memory of a new operator process, from the service's status and its Deployment.

    Args:
        service: with its status.
        ordered: replicas of the live Deployment; None without one.
        now: time on the steady clock.
        at: the same moment by the calendar.
        image: engine image of the live pod template; empty without one.
    """
    status = service.status
    if status.limits is not None:
        known = status.limits
        limits = LimitsInForce(known.limits, known.revision)
        override = known.override
    else:
        # Engines that run without a revision in the status: calendar seconds are above any revision they have.
        limits, override = LimitsInForce(policy.capacity, int(at.timestamp()) if ordered else 0), None
    kept = status.desired_replicas or policy.bounds.min_replicas
    held = {one.type for one in status.conditions if one.status == "True"}
    return Memory(
        uid=service.metadata.uid,
        engine=engine_of(policy, image),
        replicas=kept if ordered is None else ordered,
        limits=limits,
        before_override=None if override is None else override.before.limits,
        first_revision=int(at.timestamp()),
        tuning=_tuning(service, now, at, image),
        startups=_startups(service, policy.engine),
        routed_since=float("-inf") if "Ready" in held else None,
        waking="Waking" in held,
        digests=tuple((one.rollout, one.digest) for one in status.model.rollouts) if status.model is not None else (),
        moving=1 if status.engine is not None and status.engine.upgrade in ("Moving", "Stuck") else None,
        prefetch=_prefetch(status.prefetch),
    )


def _prefetch(known: PrefetchStatus | None) -> Progress | None:
    if known is None:
        return None
    num_bytes = known.bytes // known.done if known.done else 0
    return Progress(known.run, known.served or "", known.digest or "", num_bytes, tuple(known.places))


def _startups(service: InferenceService, engine: str) -> StartUps:
    """Returns the starts in the status, if they are of this engine. Ready pods are of the one in the status."""
    known = service.status.start_up
    if known is None:
        return StartUps(engine)
    recent = known.recent if known.engine == engine else []
    return StartUps(engine, tuple(_start(one) for one in recent), restored=True)


def _start(known: StartStatus) -> Start:
    return Start(known.node, known.scheduled, known.image, known.weights, known.engine, known.endpoints)


def _tuning(service: InferenceService, now: float, at: datetime, image: str) -> TuningState:
    """Returns the state of tuning with what the status has of it, if that belongs to this spec and engine image."""
    status, state = service.status, TuningState(window_start=now)
    same = status.observed_generation == service.metadata.generation
    if status.tuning is None or not same or status.engine is None or status.engine.image != image:
        return state
    tighten, tighten_until = _correction(status.tuning.tpot_target, TIGHTEST, now, at)
    memory, memory_until = _correction(status.tuning.kv_cache, LEAST_MEMORY, now, at)
    return replace(
        state,
        tighten=tighten,
        tighten_until=tighten_until,
        memory=memory,
        memory_until=memory_until,
        bracket=_bracket(status.tuning.bracket, now, at),
        fences=tuple(_fence(one, now, at) for one in status.tuning.fences or ()),
    ).without_expired(now)


def _correction(known: CorrectionStatus | None, least: float, now: float, at: datetime) -> tuple[float, float]:
    """Returns the share, `least` at least, and its end on the steady clock."""
    if known is None or not known.share < 1:
        return 1.0, math.inf
    left = (known.until - at).total_seconds()
    return max(least, known.share), now + min(left, TuningPolicy().corrected)


def _bracket(known: BracketStatus | None, now: float, at: datetime) -> Bracket | None:
    if known is None:
        return None
    good, bad, wanted = (
        one.limits.at_least(Limits(1, 1)).at_most(HIGHEST_LIMITS) for one in (known.good, known.bad, known.modelled)
    )
    return Bracket(good, bad, wanted, _end(known.until, now, at))


def _fence(known: FenceStatus, now: float, at: datetime) -> Fence:
    knob: Knob = "max_num_seqs" if known.limit == "maxNumSeqs" else "max_num_batched_tokens"
    value = max(1, min(known.value, HIGHEST_LIMITS.get(knob)))
    return Fence(knob, known.direction == "Up", value, _end(known.until, now, at))


def _end(until: datetime, now: float, at: datetime) -> float:
    """Returns the time on the steady clock, no later than what is remembered longest."""
    return now + min((until - at).total_seconds(), TuningPolicy().fence)

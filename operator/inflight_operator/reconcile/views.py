"""Inputs of each decision from a snapshot. Window measurements are computed here, once a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from inflight_base.page.histogram import Histogram
from inflight_operator.decide.replicas.demand import MAX_ERROR, DemandHistory, DemandView
from inflight_operator.decide.replicas.scaling import ScalingObservation
from inflight_operator.decide.replicas.start_up import LeadTime, StartUps
from inflight_operator.decide.status.pods import PodClass, Pods, Replicas
from inflight_operator.decide.tuning.tune import TuningMode
from inflight_operator.decide.tuning.types import PodQuality, Quality, Slo, TuningModel, TuningView
from inflight_operator.decide.tuning.workload import recent_workload
from inflight_operator.observe.history import PodSpan
from inflight_operator.observe.window import Span, Window
from inflight_operator.reconcile.policy import Policy
from inflight_operator.reconcile.snapshot import Snapshot
from inflight_settings.limits import Limits, LimitsBounds


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of the engines over the last `Window.span` seconds.

    Attributes:
        ttft_p95, tpot_p95: seconds; None without observations.
        preemptions_per_min: preemptions per minute, over all pods.
    """

    ttft_p95: float | None
    tpot_p95: float | None
    preemptions_per_min: float


def measured(snapshot: Snapshot) -> Measured:
    """Returns the measurements over the whole window."""
    span = snapshot.window.since(snapshot.now - snapshot.window.span)
    return Measured(
        span.histogram(lambda sample: sample.ttft).percentile(0.95),
        span.histogram(lambda sample: sample.tpot).percentile(0.95),
        span.rate(lambda sample: sample.preemptions) * 60,
    )


def scaling_observation(
    snapshot: Snapshot, replicas: Replicas, ordered: int, measured: Measured, limits: Limits, *, fixed: bool
) -> ScalingObservation:
    """Returns the inputs of the scaling decision.

    Args:
        ordered: replicas ordered from the child now.
        limits: limits in force.
        fixed: True while an override holds them.
    """
    low = snapshot.policy.tuning_bounds.low
    return ScalingObservation(
        time=snapshot.now,
        replicas=ordered,
        ready=replicas.ready,
        loads=tuple(snapshot.fresh.values()),
        ttft_p95=measured.ttft_p95,
        tpot_p95=measured.tpot_p95,
        limits_spent=fixed or snapshot.policy.tuning is not TuningMode.AUTO or limits.at_most(low) == limits,
        window=snapshot.window.span,
        blocked=replicas.blocked,
        cause=replicas.cause,
        shared_cause=replicas.shared_cause,
        late=replicas.late,
        held=snapshot.gateway.held if snapshot.gateway is not None else 0,
        slots=limits.max_num_seqs,
    )


def with_demand(snapshot: Snapshot, demand: DemandHistory) -> DemandHistory:
    """Returns the demand with the fresh samples of this round."""
    moment = snapshot.at.timestamp()
    ready_for = {pod.uid: moment - pod.ready_since for pod in snapshot.pods if pod.ready_since is not None}
    gateway = snapshot.gateway.demand if snapshot.gateway is not None and snapshot.gateway.counts else None
    return demand.with_samples(snapshot.fresh, ready_for, snapshot.now, {pod.uid for pod in snapshot.pods}, gateway)


def longest_ready(pods: Pods, moment: float) -> float:
    """Returns the seconds for which the first ready pod has been ready. Args: moment: seconds since the epoch."""
    return max((moment - pod.ready_since for pod in pods.ready if pod.ready_since is not None), default=0.0)


def lead_time(snapshot: Snapshot, startups: StartUps, pods: Pods) -> LeadTime:
    """Returns the expected start of a replica that is ordered now: it is likely to get a node of the others."""
    return startups.lead_time(sorted({pod.node for pod in pods.replicas if pod.node}), snapshot.elsewhere)


def demand_view(
    snapshot: Snapshot, demand: DemandHistory, pods: Pods, startups: StartUps, observation: ScalingObservation
) -> DemandView:
    """Returns the inputs of the decision on the number of replicas."""
    moment, fresh = snapshot.at.timestamp(), snapshot.fresh.values()
    lead = lead_time(snapshot, startups, pods)
    under_way = [
        (startups.lead_time([one.pod.node], snapshot.elsewhere) if one.pod.node else lead).remaining(
            one.pod, moment, snapshot.loading.get(one.pod.uid)
        )
        for one in pods.all
        if one.kind is PodClass.STARTING and not one.late
    ]
    not_created = max(0, observation.starting - len(under_way))
    prompt = demand.workload.prompt if demand.workload is not None else 0.0
    waiting_tokens = (
        one.waiting * prompt if one.waiting_prompt_tokens is None else one.waiting_prompt_tokens for one in fresh
    )
    return DemandView(
        time=snapshot.now,
        calendar=moment,
        points=demand.points,
        workload=demand.workload,
        replica=demand.replica,
        waiting=observation.waiting,
        running=sum(one.running for one in fresh),
        waiting_tokens=sum(waiting_tokens) + _held_tokens(snapshot, demand, prompt),
        # The additional pods of a rollout are not ordered replicas.
        ready=min(observation.ready, observation.credited),
        starting=tuple(sorted([*under_way[: observation.starting], *[lead.phases.total] * not_created])),
        start_up=lead.phases.total,
        ready_for=longest_ready(pods, moment),
        pooled=snapshot.pooled,
        ordered=snapshot.policy.ordered,
    )


def _held_tokens(snapshot: Snapshot, demand: DemandHistory, prompt: float) -> float:
    """Returns the prompt tokens that wait at the gateway, in tokens of the engines.

    Args:
        prompt: mean tokens of a prompt, for a gateway that does not report them.
    """
    gateway = snapshot.gateway
    return 0.0 if gateway is None else gateway.held_prompt_tokens * demand.offered.unit or gateway.held * prompt


def limits_bounds(policy: Policy) -> LimitsBounds:
    """Returns the bounds of `spec.tuning`; in mode Off the limits that engines are started with. Each engine gets at
    most its own capacity, so a smaller engine does not limit the others."""
    if policy.tuning is TuningMode.OFF:
        return LimitsBounds(policy.tuning_bounds.low.at_most(policy.capacity), policy.capacity)
    return bounds_of_tuning(policy)


def bounds_of_tuning(policy: Policy) -> LimitsBounds:
    """Returns the bounds of `spec.tuning` in any mode, within the capacity."""
    high = policy.tuning_bounds.high.at_most(policy.capacity)
    return LimitsBounds(policy.tuning_bounds.low.at_most(high), high)


def mean_slo(policy: Policy, demand: DemandHistory) -> Slo:
    """Returns the latency targets for comparison with measurements."""
    return policy.slo.of_mean(demand.workload.prompt if demand.workload is not None else 0.0)


def tuning_model(snapshot: Snapshot, demand: DemandHistory) -> TuningModel | None:
    """Returns the cost model for limits; None without a reliable one. A model that was reliable and no longer is stays
    in use with the largest error of a reliable one."""
    workload = recent_workload(demand)
    if demand.replica is None or workload is None:
        return None
    errors = sorted(sample.cost_error for sample in snapshot.fresh.values() if sample.cost_error is not None)
    return TuningModel(demand.replica, workload, min(errors[len(errors) // 2], MAX_ERROR) if errors else 0.0)


def tuning_view(window: Window, start: float, now: float, slo: Slo, names: Mapping[str, str]) -> TuningView:
    """Returns the inputs of the tuning decision: measurements from `start` on.

    Args:
        names: names of the pods that accept limits, by uid.
    """
    return _SpanView(window, window.since(start), now, slo, names)


class _SpanView(TuningView):
    """The measurements of a span, each computed when it is first read: most rounds ask only how long the span is.
    `kept` of it has all of them."""

    __slots__ = ("histograms", "measures", "names", "slo", "uids")

    def __init__(self, window: Window, measures: Span, now: float, slo: Slo, names: Mapping[str, str]) -> None:
        given = {"measures": measures, "uids": tuple(window.pods), "time": now, "slo": slo, "names": names}
        for name, value in given.items():
            object.__setattr__(self, name, value)

    if not TYPE_CHECKING:  # what is not computed yet has a type in `TuningView`

        def __getattr__(self, name: str) -> Any:
            if name not in _MEASURES:
                raise AttributeError(name)
            value = _MEASURES[name](self.measures, self)
            object.__setattr__(self, name, value)
            return value


class _Histograms(NamedTuple):
    """Observations of a span, summed over pods."""

    ttft: Histogram
    tpot: Histogram
    itl: Histogram
    steps: Histogram


_MEASURES: Mapping[str, Callable[[Span, Any], Any]] = {
    "histograms": lambda span, _: _Histograms(
        span.histogram(lambda sample: sample.ttft),
        span.histogram(lambda sample: sample.tpot),
        span.histogram(lambda sample: sample.itl),
        span.histogram(lambda sample: sample.step_tokens),
    ),
    "span": lambda span, _: span.seconds,
    "pods": lambda span, _: sum(pod.seconds > 0 for pod in span.pods),
    "tpot_p95": lambda _, view: view.histograms.tpot.percentile(0.95),
    "tpot_late": lambda _, view: (
        0.0 if view.slo.tpot_p95 is None else view.histograms.tpot.share_above(view.slo.tpot_p95)
    ),
    "finished": lambda _, view: int(view.histograms.tpot.count),
    "itl_mean": lambda _, view: view.histograms.itl.mean,
    "itl_p50": lambda _, view: view.histograms.itl.percentile(0.5),
    "itl_p95": lambda _, view: view.histograms.itl.percentile(0.95),
    "ttft_p95": lambda _, view: view.histograms.ttft.percentile(0.95),
    "generated_tokens": lambda span, _: span.increase(lambda sample: sample.generation_tokens),
    "tokens_per_s": lambda span, view: view.generated_tokens / span.seconds if span.seconds > 0 else 0.0,
    "step_tokens_p50": lambda _, view: view.histograms.steps.percentile(0.5),
    "step_tokens_p95": lambda _, view: view.histograms.steps.percentile(0.95),
    "running": lambda span, _: span.mean_per_pod(lambda sample: sample.running) or 0.0,
    "running_now": lambda span, _: int(span.largest_now(lambda sample: sample.running)),
    "waiting": lambda span, _: span.mean_per_pod(lambda sample: sample.waiting) or 0.0,
    "waiting_prompt_tokens": lambda span, _: span.mean_per_pod(lambda sample: sample.waiting_prompt_tokens),
    "kv_usage": lambda span, _: span.peak(lambda sample: sample.kv_usage or 0.0),
    "preemptions_per_min": lambda span, _: _per_pod(span.pods, lambda pod: pod.preemptions) * 60,
    "quality": lambda span, view: _quality(span, view.histograms.ttft, view.histograms.tpot, view.slo),
    "by_pod": lambda span, view: tuple(
        PodQuality(uid, view.names[uid], _quality(Span((pod,)), pod.ttft, pod.tpot, view.slo))
        for uid, pod in zip(view.uids, span.pods, strict=True)
        if uid in view.names and pod.seconds > 0
    ),
}
"""How each field of `TuningView` is computed of a span and of the other fields."""


def _quality(span: Span, ttft: Histogram, tpot: Histogram, slo: Slo) -> Quality:
    """Returns the quality of a span. Args: ttft, tpot: of all its pods."""
    return Quality(
        first_tokens=int(ttft.count),
        finished=int(tpot.count),
        ttft_within=1.0 if slo.ttft_p95 is None else ttft.share_within(slo.ttft_p95),
        tpot_within=1.0 if slo.tpot_p95 is None else tpot.share_within(slo.tpot_p95),
        tokens_per_s=_per_pod(span.pods, lambda pod: pod.generation_tokens),
        load=_per_pod(span.pods, lambda pod: pod.arrived or pod.ttft.count),
        waiting=span.mean_per_pod(lambda sample: sample.waiting) or 0.0,
    )


def _per_pod(pods: Sequence[PodSpan], of: Callable[[PodSpan], float]) -> float:
    """Returns the growth per second, as the mean over measured pods."""
    rates = [of(pod) / pod.seconds for pod in pods if pod.seconds > 0]
    return sum(rates) / len(rates) if rates else 0.0

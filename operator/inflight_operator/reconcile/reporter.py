"""Writes status and events of a round to the API server: the status if due, then an event for each transition;
and the values of its metrics.

A status is due at once when a state changes; measurements and wording are written periodically. A write costs the API
server milliseconds of CPU, for it checks the rules of the spec each time: numbers of pods wait where it is slow.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from inflight_base.kube.errors import KubeApiError
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.units import parse_duration
from inflight_operator.api.status import MAX_DECISIONS, Decision, InferenceServiceStatus
from inflight_operator.api.types import ServiceRecord
from inflight_operator.apply.kube import OperatorApi
from inflight_operator.clock import Clock, pause
from inflight_operator.decide.status.sentences import FOLLOW_TRAFFIC
from inflight_operator.observe.cache import ClusterCache
from inflight_operator.observe.metrics import mean_kv_usage
from inflight_operator.pacing import rest
from inflight_operator.reconcile.plan import Outcome, Plan
from inflight_operator.reconcile.report import Event, build_status, events_of, recorded
from inflight_operator.reconcile.snapshot import Snapshot
from inflight_operator.reconcile.views import mean_slo
from inflight_operator.telemetry.service_metrics import ServiceValues

logger = logging.getLogger(__name__)

NUMBERS_SECONDS = 60.0
"""Seconds between two writes of a status in which only measurements and wording changed; they belong to metrics."""

AT_ONCE = 16
"""Statuses that are written at once: where many change, they do not take the API server from writes of replicas."""

LOADING_SECONDS = 15.0
"""Seconds between two writes of the progress of long loads."""

MOVED_SHARE = 0.25
"""Share of the last written value within which a measurement counts as unchanged."""


@dataclass(slots=True)
class ReporterState:
    """State of the reporter for one service.

    Attributes:
        at: time of the last status write, or of the first round: what has only been measured anew waits as usual.
        took: seconds that it took.
        decisions: decisions that no status contains yet.
        failures: consecutive failed writes.
        again: time of the next attempt.
    """

    at: float = float("-inf")
    took: float = 0.0
    decisions: tuple[Decision, ...] = ()
    failures: int = 0
    again: float = float("-inf")


class Reporter:
    def __init__(self, api: OperatorApi, cache: ClusterCache, clock: Clock) -> None:
        self._clock = clock
        self._api = api
        self._cache = cache
        self._writing = asyncio.Semaphore(AT_ONCE)

    async def report(
        self, key: ServiceKey, snapshot: Snapshot, plan: Plan, outcome: Outcome, state: ReporterState
    ) -> bool:
        """Writes what is due; returns True if all writes succeeded."""
        made = (recorded(decision, snapshot.at) for decision in plan.decisions)
        state.decisions = (*state.decisions, *made)[-MAX_DECISIONS:]
        status = build_status(snapshot, plan, outcome, state.decisions)
        if not is_due(snapshot.service.status, status, self._clock.steady() - state.at, state.took):
            return True
        return await self.write(key, snapshot.service, status, state)

    async def write(
        self, key: ServiceKey, service: ServiceRecord, status: InferenceServiceStatus, state: ReporterState
    ) -> bool:
        """Writes a status and the events of its changes; returns whether the status was accepted."""
        began = self._clock.steady()
        if began < state.again:
            return False
        async with self._writing:
            try:
                live = await self._api.patch_status(service, status.to_dict())
            except KubeApiError as error:
                state.failures += 1
                state.again = self._clock.steady() + pause(state.failures)
                logger.warning("%s: the status was not taken: %s", key, error)
                return False
            if live is not None:
                self._cache.put(service.kind, live)
            decisions, state.decisions = state.decisions, ()
            state.at, state.failures = self._clock.steady(), 0
            state.took = state.at - began
        for event in events_of(service.status, status, decisions):
            await self._event(key, service, event)
        return True

    async def _event(self, key: ServiceKey, service: ServiceRecord, event: Event) -> None:
        """Writes an event. The status already contains the change, so a rejected event does not fail the round."""
        try:
            await self._api.event(service, event.type, event.reason, event.message)
        except KubeApiError as error:
            logger.warning("%s: event %s was not taken: %s", key, event.reason, error)


def is_due(before: InferenceServiceStatus, after: InferenceServiceStatus, since_written: float, took: float) -> bool:
    """Returns True if `after` should be written now: state changes at once, numbers of pods after a rest as between
    rounds, measurements and wording periodically.

    Args:
        since_written: seconds since the status was last written.
        took: seconds that this took.
    """
    if _state_parts(before) != _state_parts(after) or _new_reasons(before, after):
        return True
    if since_written >= rest(took) and _numbers_of_pods(before) != _numbers_of_pods(after):
        return True
    if since_written >= LOADING_SECONDS and before.loading != after.loading:
        return True
    return since_written >= NUMBERS_SECONDS and (
        _wording(before) != _wording(after)
        or before.tuning != after.tuning
        or before.start_up != after.start_up
        or _moved(_measurements(before), _measurements(after))
    )


def _state_parts(status: InferenceServiceStatus) -> tuple[Any, ...]:
    """Returns the parts that are written at once: no numbers, no wording and no reasons that follow the traffic."""
    limits, engine, tuning = status.limits, status.engine, status.tuning
    external = any(one.reason in ("External", "ReplicasUnset") for one in status.conditions)
    return (
        status.observed_generation,
        status.url,
        status.selector,
        status.blocked_replicas,
        None if external else status.desired_replicas,
        limits and (limits.max_num_seqs, limits.max_num_batched_tokens, limits.revision, limits.canary),
        limits and (limits.source, limits.override),
        engine and (engine.image, engine.upgrade),
        tuning and [one and one.share for one in (tuning.tpot_target, tuning.kv_cache)],
        status.prefetch and (status.prefetch.done, status.prefetch.total, status.prefetch.reason, status.prefetch.run),
        status.observed is None,
        status.gateway is None,
        {one.pod for one in status.loading or ()},
        [(one.time, one.change) for one in status.decisions],
        [(one.type, one.status, one.observed_generation) for one in status.conditions],
    )


def _numbers_of_pods(status: InferenceServiceStatus) -> tuple[Any, ...]:
    """Returns the parts that change with each pod that comes or goes."""
    limits, cost = status.limits, status.cost
    in_force = limits and limits.pods_in_force == status.ready_replicas
    return status.replicas, status.ready_replicas, in_force, cost and cost.per_hour


def _new_reasons(before: InferenceServiceStatus, after: InferenceServiceStatus) -> bool:
    """Returns True if a condition has a new reason that is written at once. Reasons that follow the traffic are not: if
    one replaces MaxReplicas, for example, and MaxReplicas returns soon after, the status is not written."""
    was = {one.type: one.reason for one in before.conditions}
    return any(one.reason not in FOLLOW_TRAFFIC and one.reason != was.get(one.type) for one in after.conditions)


def _wording(status: InferenceServiceStatus) -> list[str]:
    """Returns the messages except those that follow the traffic."""
    said = [one.message for one in status.conditions if one.reason not in FOLLOW_TRAFFIC]
    return said if status.prefetch is None else [*said, status.prefetch.message]


def _measurements(status: InferenceServiceStatus) -> dict[str, tuple[float, float]]:
    """Returns the measurements by name, each with the difference up to which it counts as steady."""
    cost = status.cost.per_million_tokens if status.cost is not None else None
    found = {"cost": (float(cost or 0), 0.0)}
    if (observed := status.observed) is not None:
        found["running"] = observed.running, 2.0
        found["asleep"] = observed.asleep or 0, 0.0
        found["kv"] = observed.kv_utilization or 0.0, 0.05
        found["ttft"] = _seconds(observed.ttft_p95), 0.01
        found["tpot"] = _seconds(observed.tpot_p95), 0.001
        found["preemptions"] = observed.preemptions_per_minute, 1.0
    if status.limits is not None and (modelled := status.limits.modelled) is not None:
        found["max_num_seqs"] = modelled.max_num_seqs, 0.0
        found["max_num_batched_tokens"] = modelled.max_num_batched_tokens, 0.0
    if (demand := status.demand) is not None:
        found["demand"] = demand.requests_per_second, 0.0
        found["capacity"] = demand.replica_requests_per_second, 0.0
        found["refused"] = demand.refused_requests_per_second or 0.0, 0.1
    if (queue := status.queue) is not None:
        found["at gateway"] = queue.at_gateway, 2.0
        found["in engines"] = queue.in_engines, 2.0
    if (gateway := status.gateway) is not None:
        found["in_flight"] = gateway.in_flight, 2.0
    return found


def _moved(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> bool:
    """Returns True if a measurement differs from the last written one by more than steady traffic varies."""
    if before.keys() != after.keys():
        return True
    pairs = ((was, *after[name]) for name, (was, _) in before.items())
    return any(abs(was - now) > max(steady, MOVED_SHARE * max(was, now)) for was, now, steady in pairs)


def _seconds(duration: str | None) -> float:
    return 0.0 if duration is None else parse_duration(duration)


def service_values(snapshot: Snapshot, plan: Plan) -> ServiceValues:
    """Returns the exported values, over the pods with fresh samples; latency targets are for a prompt of mean
    length."""
    policy, fresh = snapshot.policy, snapshot.fresh.values()
    targets = mean_slo(policy, plan.memory.demand)
    ready = sum(pod.serves for pod in snapshot.pods)
    assert targets.ttft_p95 is not None
    assert targets.tpot_p95 is not None
    return ServiceValues(
        desired=plan.desired,
        replicas=plan.replicas,
        ready=ready,
        unmeasured=ready - len(fresh),
        blocked=plan.blocked,
        waiting=sum(one.waiting for one in fresh) + (0 if snapshot.gateway is None else snapshot.gateway.held),
        running=sum(one.running for one in fresh),
        kv_utilization=mean_kv_usage(fresh),
        preemptions_per_minute=plan.measured.preemptions_per_min,
        limits=plan.limits.limits if policy.engine_type.limits else None,
        modelled=plan.modelled,
        overridden=plan.memory.before_override is not None,
        scrape_age=snapshot.window.oldest_age(snapshot.now),
        ttft_target=targets.ttft_p95,
        tpot_target=targets.tpot_p95,
        sizing=plan.sizing,
        cost_per_hour=None if policy.price is None else policy.price * len(snapshot.replicas),
        currency=policy.currency,
        gateway=snapshot.gateway,
        lead_time=None if plan.lead_time.basis == "Default" else plan.lead_time.phases,
        loading_left=max(
            (one.left for one in snapshot.loading.values() if one.left is not None),
            default=None if snapshot.loading else 0.0,
        ),
        asleep=None if policy.idle_timeout is None else plan.replicas == 0,
        engine=policy.engine_type.kind,
    )

"""Conditions under which the operator would act on a service, from its status and its spec; the operator itself
decides."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from inflight_base.manifest import defaults
from inflight_kubectl.access.resources import Decision, Service
from inflight_kubectl.output import latency


def prospects(service: Service, now: datetime) -> tuple[str, ...]:
    """Returns sentences on scaling signals, conditions that add or remove a replica, limits on scaling, and tuning."""
    if service.observed_generation is None:
        return ()
    return (*_scaling(service, now), *_tuning(service))


def _scaling(service: Service, now: datetime) -> list[str]:
    scaling, active = service.spec.get("scaling") or {}, service.condition("ScalingActive")
    said = [f"scaling: {active.message}"] if active is not None and active.message else []
    if scaling.get("mode") == "External":
        wanted = service.status.get("desiredReplicas")
        advice = "" if wanted is None else f"; the operator would order {wanted}"
        return [*said, f"replicas follow spec.replicas alone (scaling.mode External){advice}"]
    return [
        *said,
        *_demand(service),
        *_lead_time(service),
        *_targets(service),
        *_up(service, scaling),
        *_down(service, scaling, now),
    ]


def _demand(service: Service) -> list[str]:
    """Returns demand against capacity, from the status."""
    demand = service.status.get("demand")
    if not demand:
        return []
    rate, each, need = (
        float(demand[name]) for name in ("requestsPerSecond", "replicaRequestsPerSecond", "neededReplicas")
    )
    count = service.ordered or 0
    refused = float(demand.get("refusedRequestsPerSecond") or 0.0)
    lost = f"; the gateway refuses {refused:.3g} requests/s of them" if refused else ""
    return [
        f"demand: {rate:.3g} requests/s are expected and one replica sustains {each:.3g} requests/s, so {need:.2g}"
        f" of {_replicas(count)} are needed, before a margin for peaks{lost}"
    ]


def _lead_time(service: Service) -> list[str]:
    """Returns how long a new replica takes, from the status."""
    start_up = service.status.get("startUp")
    return [f"lead time: {start_up['summary']}"] if start_up else []


def _targets(service: Service) -> list[str]:
    """Returns the thresholds for each replica, and the current values."""
    targets, seen = (service.spec.get("scaling") or {}).get("targets") or {}, service.observed
    # An operator that writes no blockedReplicas writes no demand either: the targets in effect are unknown then.
    sized = bool(service.status.get("demand")) or service.blocked is None
    waiting = targets.get("waitingRequests", None if sized else defaults.FALLBACK_WAITING_REQUESTS)
    kv = targets.get("kvUtilization", None if sized else defaults.FALLBACK_KV_UTILIZATION)
    concurrency = targets.get("concurrency")
    if seen is None or service.queue is None:
        return []
    ready, found = max(1, service.ready), []
    if waiting is not None:
        found.append(
            f"{service.queue.text}, a replica is added above {waiting * ready} waiting ones ({waiting} per replica)"
        )
    if concurrency is not None:
        inside = service.queue.waiting + seen.running
        found.append(
            f"{inside} requests run or wait, a replica is added above {concurrency * ready} ({concurrency} each)"
        )
    if kv is not None and seen.kv is not None:
        found.append(f"the KV cache is {seen.kv:.0%} full, a replica is added above {kv:.0%}")
    return [f"targets: {one}" for one in found]


def _up(service: Service, scaling: Mapping[str, Any]) -> list[str]:
    ordered, most = service.ordered or 0, scaling.get("maxReplicas", defaults.MAX_REPLICAS)
    rules = (scaling.get("behavior") or {}).get("scaleUp") or {}
    if service.blocked:
        return [f"up: {_replicas(service.blocked)} blocked; see the condition Ready for the cause"]
    if rules.get("selectPolicy") == "Disabled":
        return ["up: never, behavior.scaleUp.selectPolicy is Disabled"]
    if ordered >= most:
        return [f"up: not above scaling.maxReplicas, which is {most}"]
    if ordered == 0 and service.state == "Idle":
        return ["up: the next request starts a replica; the gateway holds it until then"]
    demand = service.status.get("demand")
    window = rules.get("stabilizationWindowSeconds", 0)
    held = f", if that lasts for {window} s" if window else ""
    if not demand:
        return []
    bound = ordered * float(demand["replicaRequestsPerSecond"])
    return [
        f"up: at {bound:.3g} requests/s at the latest, which is all that {_replicas(ordered)} sustain{held}; the margin"
        f" makes it earlier, and at most {most} are ordered"
    ]


def _down(service: Service, scaling: Mapping[str, Any], now: datetime) -> list[str]:
    ordered, least = service.ordered or 0, scaling.get("minReplicas", defaults.MIN_REPLICAS)
    rules = (scaling.get("behavior") or {}).get("scaleDown") or {}
    if rules.get("selectPolicy") == "Disabled":
        return ["down: never, behavior.scaleDown.selectPolicy is Disabled"]
    if ordered <= least:
        return [f"down: not below scaling.minReplicas, which is {least}"]
    if ordered == 1:
        timeout = scaling.get("idleTimeout") or defaults.IDLE_TIMEOUT
        return [f"down: to zero after {timeout} without a request (scaling.idleTimeout)"]
    window = rules.get("stabilizationWindowSeconds", defaults.SCALE_DOWN_SECONDS)
    text = f"down: once fewer replicas were enough for {window} s (behavior.scaleDown.stabilizationWindowSeconds)"
    last = _last_scaling(service)
    if last is None or last.time is None or (last.after or 0) <= (last.before or 0):
        return [text]
    left = (last.time + timedelta(seconds=window) - now).total_seconds()
    return [f"{text}; {left:.0f} s at least are left since `{last.change}`" if left > 0 else text]


def _last_scaling(service: Service) -> Decision | None:
    return next((one for one in reversed(service.decisions) if one.kind == "Scaling"), None)


def _tuning(service: Service) -> list[str]:
    active, limits = service.condition("TuningActive"), service.limits
    if active is None:
        return []
    found = [f"tuning: {active.message}"]
    if limits is not None and service.ready:
        count = f"; {limits.pods_in_force} of {service.ready} pods run with them"
        held = count if service.live_limits else ", which pods start with"
        found.append(f"limits: {limits.max_num_seqs} seqs and {limits.max_num_batched_tokens} tokens{held}")
    seen = service.observed
    if seen is not None and seen.ttft_p95 is not None:
        goal = f"{latency(service.ttft_target)}{'' if service.has_slo else ' (default)'}"
        found.append(
            f"latency: p95 TTFT {latency(seen.ttft_p95)} of {goal}, p95 TPOT {latency(seen.tpot_p95)} of"
            f" {latency(service.tpot_target)}"
        )
    return found


def _replicas(count: int) -> str:
    return f"{count} replica{'s' * (count != 1)}"

"""Causes that a service waits for: its operator, its pods, the reason why each of them is not ready, and nodes that do
not have the model yet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from inflight_kubectl.access.events import Event
from inflight_kubectl.access.pods import Pod
from inflight_kubectl.access.resources import Loading, Service
from inflight_kubectl.output import age

MAX_PODS = 8
"""Maximum number of pods listed individually."""

_START_UP_PROBE = "startup probe failed"


def waits(service: Service, pods: Sequence[Pod], events: Sequence[Event], now: datetime) -> tuple[str, ...]:
    """Returns a sentence for each cause; none if all replicas are ready."""
    found = [*_operator(service), *_held(service), *_missing(service, pods)]
    found += _prefetch(service)
    pending = [pod for pod in pods if not pod.ready and not pod.deleting]
    limit = (service.spec.get("rollout") or {}).get("startupTimeout", "30m")
    for pod in pending[:MAX_PODS]:
        about = [one for one in events if one.about[1] == pod.name]
        found.append(_pod(pod, service.loading.get(pod.name), about, limit, now))
    if len(pending) > MAX_PODS:
        found.append(f"{len(pending) - MAX_PODS} more pods are not ready")
    leaving = sum(pod.deleting for pod in pods)
    if leaving:
        found.append(f"{_pods(leaving)} being removed: requests in flight finish first")
    return tuple(found)


def _operator(service: Service) -> list[str]:
    if service.observed_generation is None:
        return ["the operator has not seen this service yet; `kubectl inflight doctor` says whether it runs"]
    if service.observed_generation < service.generation:
        return [
            f"the operator has not acted on the newest spec yet (generation {service.generation}, the status is of"
            f" {service.observed_generation}); `kubectl inflight doctor` says whether it runs"
        ]
    return []


def _held(service: Service) -> list[str]:
    """Returns a sentence on the queue while no replica can start all of it."""
    return [service.queue.text] if service.queue is not None and service.queue.at_gateway else []


def _prefetch(service: Service) -> list[str]:
    """Returns a sentence on nodes that are to have the model before engines need it, and do not have it yet."""
    found = service.status.get("prefetch") or {}
    return [] if found.get("reason", "Prefetched") == "Prefetched" else [f"model.prefetch: {found.get('message', '')}"]


def _missing(service: Service, pods: Sequence[Pod]) -> list[str]:
    """Returns a sentence on ordered replicas without a pod."""
    staying = sum(not pod.deleting for pod in pods)
    progressing = service.condition("Progressing")
    if not pods or service.ordered is None or staying >= service.ordered:
        return []
    why = f": {progressing.message}" if progressing is not None and progressing.reason == "PodsRefused" else ""
    count = service.ordered - staying
    return [f"{count} ordered replica{'s have' if count > 1 else ' has'} no pod yet{why}"]


def _pod(pod: Pod, loading: Loading | None, events: Sequence[Event], limit: str, now: datetime) -> str:
    """Returns the reason why a pod is not ready, from its state, the progress of its load and its newest event."""
    warnings = [one for one in events if one.warning and _START_UP_PROBE not in one.message.lower()]
    if not pod.node:
        said = pod.detail or (warnings[-1].message if warnings else "the scheduler has not looked at it yet")
        return f"{pod.name} waits for a node since {age(pod.created, now)}: {said}"
    if pod.state in ("ContainerCreating", "PodInitializing", "Pending"):
        return _starting(pod, events, warnings, now)
    if pod.state == "Starting":
        progress = f": {loading.summary}" if loading is not None else ""
        return (
            f"{pod.name} loads its model since {age(pod.started, now)} on {pod.node}{progress};"
            f" the container is restarted after {limit} (rollout.startupTimeout)"
        )
    again = f", {pod.restarts} restart{'s' * (pod.restarts != 1)}" if pod.restarts else ""
    said = pod.detail or (warnings[-1].message if warnings else "nothing is said")
    return f"{pod.name} is in {pod.state}{again}: {said}"


def _starting(pod: Pod, events: Sequence[Event], warnings: Sequence[Event], now: datetime) -> str:
    reasons = [one.reason for one in events]
    if warnings:
        last = warnings[-1]
        return f"{pod.name} cannot start on {pod.node}: {last.reason}: {last.message}"
    if "Pulling" in reasons and "Pulled" not in reasons:
        since = next(one.at for one in reversed(events) if one.reason == "Pulling")
        return f"{pod.name} pulls its image {pod.image} since {age(since, now)} on {pod.node}"
    return f"{pod.name} is being started on {pod.node} since {age(pod.created, now)}: image and volumes"


def _pods(count: int) -> str:
    return f"{count} pod is" if count == 1 else f"{count} pods are"

"""Limits set by hand (`spec.tuning.override`): written to the API server, and read back from the status."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inflight_base.kube.kinds import object_path
from inflight_base.manifest.names import KIND
from inflight_kubectl.access.cluster import Cluster
from inflight_kubectl.access.pods import moment
from inflight_kubectl.access.resources import Service
from inflight_kubectl.output import Problem
from inflight_settings.limits import Limits, PartialLimits

FIELD_MANAGER = "inflight-limits"
"""Owner of the field. GitOps controllers take fields back from managers whose names begin with `kubectl`."""


@dataclass(frozen=True, slots=True)
class Canary(Limits):
    """The canary pod and its limits."""

    pod: str


@dataclass(frozen=True, slots=True)
class LimitsView:
    """Limits of a service, and their source.

    Attributes:
        in_force: limits in force; None before the operator has written a status.
        pods_in_force: pods that have confirmed them.
        source: Capacity, Tuning or Override; None if the operator does not report it.
        until: end of the override in force.
        before: limits that return at its end.
        asked: `spec.tuning.override`, whether it is in force or not.
        modelled: limits that the cost model would set; None while tuning follows it, or without a measured model.
        low, high: bounds of tuning.
        capacity: limits that engines start with.
        tuning: message of the condition TuningActive.
        reason: reason of that condition.
        live: limits of running engines can change (`Service.live_limits`).
    """

    namespace: str
    service: str
    mode: str
    in_force: Limits | None
    pods_in_force: int
    ready_replicas: int
    source: str | None
    until: datetime | None
    before: Limits | None
    asked: dict[str, Any] | None
    modelled: Limits | None
    canary: Canary | None
    low: Limits | None
    high: Limits | None
    capacity: Limits | None
    reason: str
    tuning: str
    live: bool


def limits_view(service: Service) -> LimitsView:
    """Returns the view from the resource as the API server returns it."""
    status, tuning = service.status.get("limits") or {}, service.spec.get("tuning") or {}
    override, canary = status.get("override"), status.get("canary")
    capacity = _pair(service.spec.get("engine"))
    low, high = _bounds(tuning, capacity)
    condition = service.condition("TuningActive")
    return LimitsView(
        namespace=service.namespace,
        service=service.name,
        mode=tuning.get("mode", "Auto"),
        in_force=_pair(status),
        pods_in_force=status.get("podsInForce", 0),
        ready_replicas=service.ready,
        source=status.get("source"),
        until=moment(override["until"]) if override else None,
        before=_pair(override["before"]) if override else None,
        asked=tuning.get("override"),
        modelled=_pair(status.get("modelled")),
        canary=Canary(canary["maxNumSeqs"], canary["maxNumBatchedTokens"], canary["pod"]) if canary else None,
        low=low,
        high=high,
        capacity=capacity,
        reason=condition.reason if condition is not None else "",
        tuning=condition.message if condition is not None else "the operator has written no status yet",
        live=service.live_limits,
    )


def set_override(cluster: Cluster, service: Service, limits: PartialLimits, until: datetime) -> Service:
    """Replaces the override of a service.

    Raises:
        Problem: the API server rejects it, forbidden, or no response.
    """
    end = until.isoformat(timespec="seconds").replace("+00:00", "Z")
    pair = {"maxNumSeqs": limits.max_num_seqs, "maxNumBatchedTokens": limits.max_num_batched_tokens}
    return _patch(cluster, service, {**pair, "until": end})


def clear_override(cluster: Cluster, service: Service) -> Service:
    """Removes the override of a service.

    Raises:
        Problem: forbidden, or no answer.
    """
    return _patch(cluster, service, None)


def _patch(cluster: Cluster, service: Service, override: dict[str, Any] | None) -> Service:
    from inflight_kubectl.access.api_problems import ApiProblem

    path = object_path(KIND, service.namespace, service.name)
    query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
    body = {"spec": {"tuning": {"override": override}}}
    try:
        answer = cluster.connection.request(
            "PATCH", path, query=query, body=body, content_type="application/merge-patch+json"
        )
    except ApiProblem as problem:
        raise _refused(problem) from problem
    return Service.of(answer)


def _refused(problem: Problem) -> Problem:
    """Returns the API server's error on an override, without the surrounding text."""
    if "unknown field" in problem.what:
        return Problem(
            "the InferenceService resource of this cluster has no field spec.tuning.override",
            "Upgrade the chart and its CRD, as its notes say",
        )
    _, refused, why = problem.what.rpartition("Invalid value: ")
    return Problem(f"the limits were refused: {why}") if refused else problem


def _pair(body: dict[str, Any] | None) -> Limits | None:
    if not body or "maxNumSeqs" not in body or "maxNumBatchedTokens" not in body:
        return None
    return Limits(body["maxNumSeqs"], body["maxNumBatchedTokens"])


def _bounds(tuning: dict[str, Any], capacity: Limits | None) -> tuple[Limits | None, Limits | None]:
    """Returns the bounds of tuning with the defaults that the schema leaves to the operator."""
    if capacity is None:
        return None, None
    seqs, tokens = tuning.get("maxNumSeqs") or {}, tuning.get("maxNumBatchedTokens") or {}
    high = Limits(seqs.get("max", capacity.max_num_seqs), tokens.get("max", capacity.max_num_batched_tokens))
    return Limits(seqs.get("min", 1), tokens.get("min", min(64, high.max_num_batched_tokens))), high

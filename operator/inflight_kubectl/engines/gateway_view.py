"""Reports of the gateway's pods on a service: held requests, and the last picks.

The reports are read from the picker's loopback port of each pod, `GET /v1/state` and `GET /v1/picks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from inflight_kubectl.access.cluster import Cluster
from inflight_kubectl.access.resources import Service
from inflight_kubectl.engines.gateways import GatewayPod, behind_gateway, no_gateway, ready_gateways
from inflight_kubectl.output import Problem

LAST_PICKS = 8

_SECONDS = 5.0
"""Timeout of one request in seconds."""


@dataclass(frozen=True, slots=True)
class PickedRequest:
    """A request that the gateway sent to a replica.

    Attributes:
        pods: pods that it was sent to, in order: more than one if an attempt failed.
        reason: reason of the first attempt's pick, in one word.
        held_s: seconds that the gateway held it.
        predicted_ttft_s: predicted TTFT in seconds at the first attempt.
        cached_tokens: tokens of its prompt expected in the pod's prefix cache.
        scores: scores of the pick, by name.
        ended: True if its response has ended.
        status: HTTP status sent to the client; 0: the client disconnected; None: not ended, or not known.
        ttft_s: TTFT in seconds, as observed by the client.
    """

    at: datetime
    request_id: str
    tenant: str
    service_class: str
    prompt_tokens: int
    pods: tuple[str, ...]
    reason: str
    held_s: float
    predicted_ttft_s: float | None
    cached_tokens: int
    scores: Mapping[str, float]
    ended: bool
    status: int | None
    ttft_s: float | None
    continuations: int


@dataclass(frozen=True, slots=True)
class GatewayView:
    """All gateway pods together.

    Attributes:
        pods: names of the pods that responded. owner: the one that decides on the service's requests; empty: not known.
        held, in_flight: number of requests. oldest_held_s: seconds that the oldest held one has waited.
        picks: last picks, newest first.
        problem: reason why the view is incomplete; None if it is complete.
    """

    pods: tuple[str, ...] = ()
    owner: str = ""
    held: int = 0
    held_prompt_tokens: int = 0
    oldest_held_s: float = 0.0
    in_flight: int = 0
    picks: tuple[PickedRequest, ...] = ()
    problem: str | None = None


def gateway_view(cluster: Cluster, service: Service) -> GatewayView | None:
    """Returns the gateway's reports; None for a service that is not behind it. An unreachable pod is reported in
    `problem`."""
    if not behind_gateway(service):
        return None
    try:
        pods = ready_gateways(cluster, service)
    except Problem as problem:
        return GatewayView(problem=problem.what)
    if not pods:
        return GatewayView(problem=no_gateway(service).what)
    states: dict[str, Mapping[str, Any]] = {}
    picks: list[PickedRequest] = []
    owners: list[str] = []
    missing = None
    for pod in pods:
        try:
            states[pod.name], owner, found = _ask(cluster, pod, service)
        except Problem as said:
            missing = f"gateway pod {pod.name} cannot be asked: {said.what}"
        else:
            picks += found
            owners.append(owner)
    return merged(states, picks, missing, owners)


def merged(
    states: Mapping[str, Mapping[str, Any]],
    picks: Sequence[PickedRequest],
    problem: str | None = None,
    owners: Sequence[str] = (),
) -> GatewayView:
    """Returns the combined view of the pods' reports. While a service moves, two pods have requests and picks of it.

    Args:
        states: pod -> its report on the service.
        owners: the pod that each of them names as the service's owner; empty: an earlier release.
    """
    last = sorted(picks, key=lambda one: one.at, reverse=True)[:LAST_PICKS]
    return GatewayView(
        pods=tuple(states),
        owner=max(owners, key=owners.count, default=""),
        held=sum(one.get("held") or 0 for one in states.values()),
        held_prompt_tokens=sum(one.get("held_prompt_tokens") or 0 for one in states.values()),
        oldest_held_s=max((one.get("oldest_held_s") or 0.0 for one in states.values()), default=0.0),
        in_flight=sum(one.get("in_flight") or 0 for one in states.values()),
        picks=tuple(last),
        problem=problem,
    )


def picked_request(body: Mapping[str, Any]) -> PickedRequest:
    """Reads an entry of `GET /v1/picks`."""
    attempts, ended = body.get("attempts") or [{}], body.get("finished")
    first = attempts[0]
    tried = tuple(one["pods"][0] for one in attempts if one.get("pods"))
    return PickedRequest(
        at=datetime.fromtimestamp(body["at"], UTC),
        request_id=body["request_id"],
        tenant=body.get("tenant") or "",
        service_class=body.get("class") or "",
        prompt_tokens=body.get("prompt_tokens") or 0,
        pods=tried,
        reason=first.get("reason") or "",
        held_s=first.get("held_s") or 0.0,
        predicted_ttft_s=first.get("predicted_ttft_s"),
        cached_tokens=first.get("cached_tokens") or 0,
        scores=first.get("scores") or {},
        ended=ended is not None,
        status=ended["status"] if ended else None,
        ttft_s=ended.get("ttft_s") if ended else None,
        continuations=ended.get("continuations", 0) if ended else 0,
    )


def _ask(cluster: Cluster, pod: GatewayPod, service: Service) -> tuple[Mapping[str, Any], str, list[PickedRequest]]:
    """
    Raises:
        Problem: no response, or an invalid one.
    """
    import httpx

    from inflight_kubectl.engines.engine_access import PortForward

    query = {"namespace": service.namespace, "service": service.name, "last": str(LAST_PICKS)}
    with PortForward(cluster.connection, lambda: [pod.state]) as forward:
        try:
            with forward.client(timeout=_SECONDS) as http:
                state = http.get("/v1/state").raise_for_status().json()
                picked = http.get("/v1/picks", params=query).raise_for_status().json()
            own = [one for one in state["services"] if (one["namespace"], one["name"]) == service.key]
            owner = str(picked.get("owner") or "")
            return (own[0] if own else {}), owner, [picked_request(one) for one in picked["picks"]]
        except httpx.HTTPError as error:
            raise forward.problem or Problem(str(error) or type(error).__name__) from error
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise Problem(f"its answer cannot be read ({type(error).__name__})") from error

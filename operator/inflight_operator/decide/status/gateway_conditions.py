"""Conditions of a service behind the gateway: GatewayReady; Idle and Waking of one that scales to zero; what Ready says
while no replica runs; InferencePool: whether other gateways can use the service, and which ones do; PrefillReady:
whether other engines compute its prompts.

Ready says whether requests to the service are answered. At zero they are: the gateway holds the first one and the
operator starts a replica, so Ready is True with the reason Idle, and `kubectl wait --for=condition=Ready` returns for
an idle service. The same holds while it wakes: True with the reason Waking. Without a connected gateway pod, or with a
replica that does not start, requests are not answered, and Ready is False with that reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inflight_operator.decide.decision import Number, Reason
from inflight_operator.decide.status.conditions import Finding
from inflight_operator.decide.status.sentences import sentence
from inflight_operator.observe.gateway_view import GatewayView
from inflight_operator.observe.pool_view import PoolParent
from inflight_operator.observe.prefill_view import PrefillView


@dataclass(frozen=True, slots=True)
class GatewayFacts:
    """Attributes:
    service: DNS name of the gateway's Service; empty where the operator runs without a gateway.
    view: the state that its pods report.
    why: why the service sleeps or does not; None for one that never scales to zero.
    asleep: no replica is ordered.
    waking: replicas were ordered for held requests, and none takes requests yet.
    blocked: ordered replicas that will not become ready without intervention. A replica that only starts slowly will
        still serve the held requests.
    """

    service: str
    view: GatewayView
    why: Reason | None = None
    asleep: bool = False
    waking: bool = False
    blocked: int = 0


def with_gateway(findings: Sequence[Finding], facts: GatewayFacts) -> tuple[Finding, ...]:
    """`findings` of `find_conditions` with the conditions of the gateway."""
    gateway = _gateway_ready(facts)
    named = {one.type: one for one in findings}
    named["Ready"] = _ready(named["Ready"], gateway, facts)
    return (*named.values(), gateway, *_sleep(facts))


def _ready(found: Finding, gateway: Finding, facts: GatewayFacts) -> Finding:
    if facts.why is None or found.status == "True":
        return found
    if facts.asleep:
        if gateway.status != "True":
            return Finding("Ready", "False", gateway.reason, gateway.message)
        return Finding("Ready", "True", "Idle", sentence(facts.why))
    if not facts.waking or facts.blocked or gateway.status != "True":
        return found
    numbers: dict[str, Number] = {"held": facts.view.held, "said": found.message}
    return Finding("Ready", "True", "Waking", sentence(Reason("WakingPods", numbers)))


def _gateway_ready(facts: GatewayFacts) -> Finding:
    view = facts.view
    if not facts.service:
        reason = Reason("NoGateway")
    elif not view.pods:
        reason = Reason("NoGatewayPods", {"service": facts.service})
    elif not view.heard:
        reason = Reason("GatewayNotHeard", {"said": view.silence})
    else:
        numbers: dict[str, Number] = {"pods": view.pods, "heard": view.heard, "said": view.silence}
        return Finding("GatewayReady", "True", "Routing", sentence(Reason("Routing", numbers)))
    return Finding("GatewayReady", "False", reason.code, sentence(reason))


def _sleep(facts: GatewayFacts) -> tuple[Finding, ...]:
    why = facts.why
    if why is None:
        return ()
    idle = Finding("Idle", "True" if facts.asleep else "False", why.code, sentence(why))
    if not facts.waking:
        state = why if facts.asleep else Reason("Awake")
        return idle, Finding("Waking", "False", state.code, sentence(state))
    waking = Reason("WakingPods", {"held": facts.view.held, "said": ""})
    return idle, Finding("Waking", "True", "Waking", sentence(waking))


def pool_condition(
    *, gateway: bool, picker: bool, api: bool, parents: Sequence[PoolParent], elsewhere: int = 0
) -> Finding:
    """Returns the condition InferencePool of a service that enables gateway.inferencePool.

    Args:
        gateway: the operator runs with a gateway. picker: that gateway serves other gateways.
        api: the cluster has InferencePools.
        parents: gateways that report on the pool.
        elsewhere: ready pods of an earlier engine type that serve on another port than the pool's one.
    """
    refused = next((one for one in parents if one.complaint), None)
    if not gateway:
        reason = Reason("NoGateway")
    elif not picker:
        reason = Reason("NoEndpointPicker")
    elif not api:
        reason = Reason("NoInferencePoolApi")
    elif refused is not None:
        reason = Reason("PoolRefused", {"who": refused.name, "said": refused.complaint})
    elif parents:
        reason = Reason("PoolInUse", {"who": ", ".join(one.name for one in parents)})
    else:
        reason = Reason("PoolNotReferenced")
    works = reason.code in ("PoolInUse", "PoolNotReferenced")
    if works and elsewhere:
        reason = replace(reason, held=Reason("PoolOtherPort", {"pods": elsewhere}))
    return Finding("InferencePool", "True" if works else "False", reason.code, sentence(reason))


def prefill_condition(view: PrefillView) -> Finding:
    """Returns the condition PrefillReady of a service with prefill engines."""
    numbers: dict[str, Number] = {"name": view.name, "replicas": view.replicas, "ready": view.ready}
    if not view.ready:
        return Finding("PrefillReady", "False", "NoPrefill", sentence(Reason("NoPrefill", numbers)))
    return Finding("PrefillReady", "True", "Prefilling", sentence(Reason("Prefilling", numbers)))

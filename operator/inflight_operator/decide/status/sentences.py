"""Texts of all reasons: the one place that renders decisions as text.

A sentence is made from a reason's code and numbers alone, so that status, events and simulations use the same text for
a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inflight_base.manifest.units import format_price, format_seconds
from inflight_operator.decide.decision import Decision, Number, Reason
from inflight_operator.decide.replicas.start_up import Phases

_Numbers = Mapping[str, Number]


def sentence(reason: Reason) -> str:
    """The reason as text, with the rules that held it back.

    Raises:
        KeyError: there is no sentence for the reason's code, or one of its numbers is missing.
    """
    text = _SENTENCES[reason.code](reason.numbers)
    return text if reason.held is None else f"{text}; {sentence(reason.held)}"


def change_text(decision: Decision) -> str:
    """`replicas 1 -> 2`."""
    return f"{decision.knob} {decision.frm} -> {decision.to}"


def count(number: Number, noun: str) -> str:
    """`1 pod`, `2 pods`."""
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"


def _seconds(value: Number) -> str:
    return format_seconds(float(value))


def _size(value: Number) -> str:
    """Three significant digits: 16.1 GB, 120 MB."""
    size = float(value)
    unit, factor = ("GB", 1e9) if size >= 1e9 else ("MB", 1e6)
    return f"{size / factor:.0f} {unit}" if size >= 100 * factor else f"{size / factor:.3g} {unit}"


def _rate(value: Number) -> str:
    """Three significant digits: 61.3, 0.42."""
    rate = float(value)
    return f"{rate:.0f} requests/s" if rate >= 100 else f"{rate:.3g} requests/s"


def _price(n: _Numbers, name: str) -> str:
    return f"{format_price(float(n[name]))} {n['currency']}".strip()


def _wait(number: Number) -> str:
    return f"{count(number, 'request')} {'waits' if number == 1 else 'wait'}"


def _pods_blocked(n: _Numbers) -> str:
    return f"{n['blocked']:g} of {count(n['replicas'], 'replica')} {'is' if n['blocked'] == 1 else 'are'} blocked"


def _tpot(n: _Numbers) -> str:
    return f"{n['measure']} {_seconds(n['tpot'])}"


def _room(n: _Numbers) -> str:
    if "tpot" in n:
        return f"{_tpot(n)} well under target {_seconds(n['tpot_target'])}"
    return f"KV cache {n['kv']:.0%} full"


def _since(n: _Numbers) -> str:
    """The measured effect of a reverted change."""
    if "preemptions" in n:
        return f"{n['preemptions']:.0f} preemptions/min since"
    if "target" in n:
        return f"{_seconds(n['pace'])} a token since, over target {_seconds(n['target'])}"
    return (
        f"{n['tokens_before']:.0f} -> {n['tokens_now']:.0f} tokens/s since, and {_seconds(n['pace'])} a token is no"
        " better"
    )


def _full_step(n: _Numbers) -> str:
    instead = f" instead of {_seconds(n['step_now'])}" if n["step"] != n["step_now"] else ""
    step = (
        f"by the measured cost of steps (error {n['error']:.0%}) a full step takes {_seconds(n['step'])} with"
        f" {n['running']:g} running{instead}"
    )
    return step + (f", target {_seconds(n['target'])}" if "target" in n else "")


def _kept(n: _Numbers) -> str:
    return f"{n['good_now']:.0%} of requests keep their targets, {n['good_before']:.0%}"


def _tokens(n: _Numbers) -> str:
    return f", {n['tokens_now']:.0f} tokens/s a pod and {n['tokens_before']:.0f}"


def _held(n: _Numbers) -> str:
    return f"{_wait(n['held'])} at the gateway"


def _beside_need(n: _Numbers) -> str:
    """The terms that add up to whole replicas with the need as it is printed."""
    need, backlog = round(float(n["need"]), 1), round(float(n.get("backlog", 0)), 1)
    whole = round(float(n["need"]) + float(n.get("backlog", 0)) + float(n["margin"]))
    text = f", {backlog:.1f} for {count(n['waiting'], 'waiting request')}" if backlog else ""
    text += f", margin {whole - need - backlog:.1f}"
    if "late" in n:
        text += f" ({count(whole - 1, 'replica')} would start {n['late']:.1%} late at {n['growth']:.0%} more)"
    return text


def _more(n: _Numbers) -> str:
    return f"{n['more']:g} more {'stays' if n['more'] == 1 else 'stay'}"


_BASES: Mapping[str, str] = {
    "Node": "on the nodes of the service",
    "Source": "of this model",
    "Fleet": "of other services",
}
"""Starts that a lead time is from, by `Basis`."""


def _have(n: _Numbers) -> str:
    size = f" ({float(n['bytes']) / 1e9:.3g} GB)" if n["bytes"] else ""
    if "claim" in n:
        return f"the claim {n['claim']} {'has' if n['done'] else 'does not have'} the model{size if n['done'] else ''}"
    each = f"{size[:-1]} each)" if size else ""
    return f"{n['done']} of {count(n['total'], 'node')} {'has' if n['total'] == 1 else 'have'} the model{each}"


_DURING = {
    "Overridden": "while spec.tuning.override is in force",
    "RollingOut": "during a rollout",
    "EngineUpgrade": "during an engine upgrade",
    "SpecNotUnderstood": "while parts of the spec cannot be read",
}

_TRAFFIC: dict[str, Callable[[_Numbers], str]] = {
    # Replicas: recommendations of targets.
    "WaitingRequests": lambda n: f"{_wait(n['waiting'])}, {n['target']:g} per replica is the target",
    "HeldUnmeasured": lambda n: (
        f"{_held(n)} and none of {count(n['ready'], 'ready pod')} has recent metrics: they count as full, and a further"
        f" replica takes {count(n['slots'], 'request')}"
    ),
    "NoRequestsWait": lambda n: f"no request waits, {n['target']:g} per replica is the target",
    "KvUtilization": lambda n: f"{n['kv']:.0%} of the KV cache is in use, {n['target']:.0%} is the target",
    "TtftOverTarget": lambda n: (
        f"p95 TTFT {_seconds(n['ttft'])} over target {_seconds(n['ttft_target'])}"
        + (f" while {_wait(n['waiting'])}" if "waiting" in n else f", {_room(n)}")
    ),
    "TpotBeyondLimits": lambda n: (
        f"p95 TPOT {_seconds(n['tpot'])} over target {_seconds(n['tpot_target'])}, and no limit can be lowered further"
    ),
    "Concurrency": lambda n: f"{n['concurrency']:.1f} requests in each replica, {n['target']:g} is the target",
    "Demand": lambda n: (
        f"{count(n['replicas'], 'replica')}: {_rate(n['rate'])} of {n['prompt']:,.0f} + {n['output']:,.0f} tokens need"
        f" {n['need']:.1f} at {_rate(n['each']).removesuffix(' requests/s')}/s each{_beside_need(n)}"
        + (f", ready in {n['ready']:.0f} s" if "ready" in n else "")
    ),
    "LatelyNeeded": lambda n: f"{_more(n)} ready for demand that jumps as it did lately",
    "SeasonNeeded": lambda n: f"{_more(n)} ready for the demand of this time yesterday or a week ago",
    "TargetsOutOfReach": lambda n: (
        f"by the cost model no engine can keep {'tpotP95 of spec.slo' if n['ttft'] else 'spec.slo'} at any load:"
        " replicas are computed without it"
    ),
    "NoDemand": lambda n: "no request has arrived since the operator started",
    "DemandNotKnown": lambda n: (
        f"not enough requests have been observed yet: {f'{_more(n)} as ordered' if 'more' in n else 'not scaling down'}"
    ),
    # Scaling to zero and back.
    "InUse": lambda n: f"{_held(n)}, {count(n['in_flight'], 'request')} in flight",
    "LatelyUsed": lambda n: (
        f"scales to zero after {_seconds(n['timeout'])} without a request (scaling.idleTimeout), in"
        f" {_seconds(n['seconds'])} at the earliest"
    ),
    "EnginesBusy": lambda n: f"engines still work on {count(n['requests'], 'request')}: not scaling to zero",
    "OperatorOutside": lambda n: (
        "all clients may connect although the NetworkPolicy should name some: the engines' metrics are on the serving"
        " port, and the operator, which reads them, does not run in a pod that a NetworkPolicy can select"
    ),
    # Replicas: reasons for no change.
    "AsDesired": lambda n: f"{count(n['replicas'], 'replica')} {'is' if n['replicas'] == 1 else 'are'} sufficient",
    "MinReplicas": lambda n: f"minReplicas is {n['bound']}",
    # Limits: steps.
    "Preemptions": lambda n: f"{n['preemptions']:.0f} preemptions/min, KV cache {n['kv']:.0%} full",
    "TpotOverTarget": lambda n: (
        f"{_tpot(n)} over target {_seconds(n['tpot_target'])}" + (", prefill fills the steps" if n["prefill"] else "")
    ),
    "RequestsWait": lambda n: f"{n['waiting']:.0f} requests wait, {_room(n)}",
    "TakenBack": lambda n: f"reverted, {_since(n)}",
    "ByCostModel": lambda n: (
        f"{_full_step(n)}; {n['rate']:.3g} requests/s under overload, {n['rate_now']:.3g} with the limits in force"
    ),
    "Canary": lambda n: f"on pod {n['pod']} first, to be compared with the others",
    "CanaryHeld": lambda n: f"all pods follow {n['pod']}, {_kept(n)} on the others",
    "CanaryLost": lambda n: f"pod {n['pod']} returns to the previous limits: {_kept(n)} on the others{_tokens(n)}",
    "CanaryEnded": lambda n: f"pod {n['pod']} returns to the previous limits: no other pod is left to compare with",
    "MoveTakenBack": lambda n: f"reverted: {_kept(n)} before{_tokens(n)}",
    "IntoBounds": lambda n: "moved into the bounds of spec.tuning and the capacity",
    # Limits: reasons for no change.
    "Draining": lambda n: (
        f"waiting until requests fall below max_num_seqs: {n['running']} still run, {n['limit']} is the limit"
    ),
    "NoTraffic": lambda n: "no traffic: limits stay as they are",
    "InDeadBand": lambda n: (
        f"p95 TPOT {_seconds(n['tpot'])}, target {_seconds(n['tpot_target'])}: no change would help"
        if "tpot" in n
        else f"{n['running']:.0f} requests run, {n['waiting']:.0f} wait: no limit binds"
    ),
    "AsModelled": lambda n: f"the limits are right: {_full_step(n)}",
    "BracketClosed": lambda n: f"nearby limits performed worse: {_full_step(n)}",
    "Kept": lambda n: f"the last change is kept: {_kept(n)} before",
    "NoWayBack": lambda n: f"{_since(n)}, but the bounds do not allow the previous limits",
    "Recommending": lambda n: f"would change {n['knob']} {n['from']} -> {n['to']}",
}
"""Reasons that come and go with the traffic; what they led to is a decision."""

_STATE: dict[str, Callable[[_Numbers], str]] = {
    # Replicas: recommendations of targets.
    "TtftWithinTarget": lambda n: f"p95 TTFT keeps the target {_seconds(n['ttft_target'])}",
    "TpotWithinTarget": lambda n: f"p95 TPOT keeps the target {_seconds(n['tpot_target'])}",
    "BelowMinReplicas": lambda n: f"minReplicas is {n['bound']}",
    "AboveMaxReplicas": lambda n: f"maxReplicas is {n['bound']}",
    "StartUp": lambda n: (
        f"a new replica takes about {_seconds(n['total'])}:"
        f" {', '.join(f'{phase} {_seconds(n[phase])}' for phase in Phases._fields)}"
        f" (median of {count(n['starts'], 'start')} {_BASES[str(n['basis'])]})"
    ),
    "ReadingModel": lambda n: (
        f"{n['pod']} has read {_size(n['read'])} of {_size(n['total'])} of its model, {_size(n['rate'])}/s"
        + (f", about {_seconds(n['left'])} left" if "left" in n else "")
    ),
    "ModelRead": lambda n: f"{n['pods']}: the model ({_size(n['total'])}) is loaded",
    "Cost": lambda n: (
        f"{_price(n, 'per_hour')} an hour for {count(n['replicas'], 'pod')}"
        + (f" ({n['asleep']} asleep)" if "asleep" in n else "")
        + (f", {_price(n, 'per_million')} for a million tokens" if "per_million" in n else "")
    ),
    # Scaling to zero and back.
    "Asleep": lambda n: (
        f"{count(n['pods'], 'pod')} {'is' if n['pods'] == 1 else 'are'} asleep, without a KV cache (scaling.sleep),"
        " until the next request"
    ),
    "Idle": lambda n: (
        f"no request came for {_seconds(n['timeout'])} (scaling.idleTimeout): the next one starts a replica"
    ),
    "Waking": lambda n: (
        f"{_held(n)}" + (f" ({n['tokens']:,} prompt tokens)" if n["tokens"] else "") + " and no replica is ready"
    ),
    "WakingPods": lambda n: f"{_held(n)} until a replica is ready" + (f"; {n['said']}" if n["said"] else ""),
    "Awake": lambda n: "replicas take requests",
    "AwakeDuring": lambda n: f"not scaling to zero {_DURING[str(n['what'])]}",
    # The gateway.
    "NoGateway": lambda n: (
        "the operator runs without a gateway, so clients reach the pods directly and spec.gateway has no effect:"
        " install the chart with gateway.enabled=true"
    ),
    "NoGatewayPods": lambda n: f"no gateway pod is found behind {n['service']}: check the gateway's Deployment",
    "GatewayNotHeard": lambda n: str(n["said"]) or "no gateway pod is heard",
    "Routing": lambda n: (
        f"{count(n['heard'], 'gateway pod')} {'routes' if n['heard'] == 1 else 'route'} requests"
        + (f"; {n['said']}" if n["said"] else "")
    ),
    "NoEndpointPicker": lambda n: (
        "the gateway does not serve other gateways, so there is no InferencePool: set gateway.extProcPort of the chart"
    ),
    "NoInferencePoolApi": lambda n: (
        "the cluster has no API inference.networking.k8s.io/v1: install the CRDs of the Gateway API Inference Extension"
    ),
    "PoolRefused": lambda n: f"{n['who']} does not use the InferencePool: {n['said']}",
    "PoolInUse": lambda n: f"the InferencePool is used by {n['who']}",
    "PoolOtherPort": lambda n: (
        f"{count(n['pods'], 'pod')} of an earlier engine type {'serves' if n['pods'] == 1 else 'serve'} on another port"
        " than the InferencePool has, and gateways that use it may not reach them"
    ),
    "PoolNotReferenced": lambda n: "no gateway uses the InferencePool yet: an HTTPRoute must have it as a backend",
    # Engines that compute prompts.
    "Prefilling": lambda n: f"{n['ready']} of {count(n['replicas'], 'replica')} of {n['name']} take prompts to compute",
    "NoPrefill": lambda n: f"no replica of {n['name']} is ready: prompts are computed where they are answered",
    # Fetching the model before engines need it.
    "Prefetching": _have,
    "Prefetched": _have,
    "PrefetchFailing": lambda n: f"{_have(n)}; on {n['place']}: {n['said']}",
    "PrefetchNoCache": lambda n: (
        "there is nowhere to keep what model.prefetch would fetch: give the namespace a model cache (engine.modelCache"
        " of the chart), or use an oci:// source"
    ),
    "PrefetchNodesUnknown": lambda n: (
        "the operator cannot list nodes, so model.prefetch has no effect: grant it list of nodes (the chart does"
        f" where it watches all namespaces), or use a claim as the model cache; {n['said']}"
    ),
    "PrefetchNoNode": lambda n: (
        "no node that is ready has the labels of model.prefetch.nodeSelector and only taints that template.tolerations"
        " tolerates"
    ),
    "PrefetchTooManyNodes": lambda n: (
        f"model.prefetch.nodeSelector selects {n['said']} nodes, more than status.prefetch.places can"
        " name: select fewer"
    ),
    "PrefetchNoClaim": lambda n: (
        f"the claim {n['said']} of the model cache does not exist in this namespace: create it, or take the namespace"
        " out of engine.modelCache.namespaces of the chart"
    ),
    "PrefetchClaimUnknown": lambda n: (
        f"the operator cannot read the claim of the model cache, so model.prefetch has no effect: {n['said']}"
    ),
    "PrefetchClaimOfOneNode": lambda n: (
        f"the claim {n['said']} of the model cache has not the access mode ReadWriteMany: a pod that fills it would"
        " keep engines from it, so the first engine fills it"
    ),
    # Replicas: reasons for no change.
    "NoTargets": lambda n: "no scaling target is set: replicas stay as they are",
    "NoReadyPods": lambda n: "no pod is ready yet: replicas stay as they are",
    "MetricsMissing": lambda n: (
        f"{n['stale']} of {count(n['ready'], 'ready pod')} have no recent metrics: not scaling down"
        if n["stale"] != n["ready"]
        else f"none of {count(n['ready'], 'ready pod')} has recent metrics: replicas stay as they are"
    ),
    "KvNotReported": lambda n: "no engine reports the use of its KV cache: replicas stay as they are",
    "Settling": lambda n: "measuring the effect of the last change",
    "ScaleUpWindow": lambda n: f"held by the scale-up window for {n['seconds']} s more",
    "ScaleDownWindow": lambda n: f"held by the scale-down window for {n['seconds']} s more",
    "ScalingDisabled": lambda n: f"behavior.{n['direction']}.selectPolicy is Disabled",
    "RateLimited": lambda n: f"{n['wanted']} are needed, behavior.{n['direction']}.policies allow {n['allowed']} now",
    "MaxReplicas": lambda n: f"maxReplicas {n['bound']} is reached",
    "Blocked": lambda n: f"{_pods_blocked(n)} ({n['cause']}) and not counted as capacity",
    "BlockedNoMore": lambda n: (
        f"{_pods_blocked(n)} ({n['cause']}): no further replica is ordered until then, {n['wanted']} are needed"
    ),
    "StartingLate": lambda n: (
        f"{count(n['late'], 'replica')} {'takes' if n['late'] == 1 else 'take'} longer than usual to start and"
        f" {'is' if n['late'] == 1 else 'are'} not counted as capacity"
    ),
    "NoMoreWhileLate": lambda n: f"no further replica is ordered until then, {n['wanted']} are needed",
    "External": lambda n: f"spec.replicas decides; the operator recommends {n['replicas']}",
    "ReplicasUnset": lambda n: (
        f"spec.replicas is not set: {count(n['kept'], 'replica')} {'is' if n['kept'] == 1 else 'are'} kept; the"
        f" operator recommends {n['replicas']}"
    ),
    # Limits: steps.
    "ByHand": lambda n: f"set by hand in spec.tuning.override until {n['until']}",
    "OverrideEnded": lambda n: f"the override ended at {n['until']}: the limits before it return",
    "OverrideRemoved": lambda n: "the override was removed: the limits before it return",
    # Limits: reasons for no change.
    "Overridden": lambda n: (
        f"tuning is paused until {n['until']}: spec.tuning.override holds max_num_seqs {n['seqs']} and"
        f" max_num_batched_tokens {n['tokens']}"
    ),
    "OverrideExpired": lambda n: f"spec.tuning.override ended at {n['until']} and has no effect: it can be removed",
    "Off": lambda n: "tuning.mode is Off: engines run at their capacities",
    "Measuring": lambda n: f"measuring the limits in force for {n['seconds']} s more",
    "NoLiveLimits": lambda n: f"engines of type {n['type']} have no limits that the operator could tune",
    "NoPlugin": lambda n: "vLLM runs without Inflight's plugin (engine.plugin false), so its limits do not change",
    "NoPluginImage": lambda n: (
        "vLLM runs without Inflight's plugin, so its limits do not change: start the operator with --plugin-image, its"
        " own image, or set engine.plugin: false"
    ),
    "PluginUnsupported": lambda n: f"Inflight's plugin serves this vLLM without changing it: {n['said']}",
    "NoLimits": lambda n: "no ready engine reports its limits",
    "NoReadyEngines": lambda n: "no engine is ready for tuning",
    "NoAdminPort": lambda n: "engines of an earlier release keep their limits until their release is upgraded",
    "LimitsNotTaken": lambda n: str(n["said"]),
    # The pod template.
    "SpecNotUnderstood": lambda n: (
        f"{n['said']}. The pod template is kept, scaling and tuning continue: correct the spec, or upgrade the operator"
        " if it is older than the CustomResourceDefinition"
    ),
    "EngineUpgrade": lambda n: "pods are moving to a newer engine release",
    "EngineUpgradeStuck": lambda n: "the move to a newer engine release is stuck, other services do not wait for it",
    "EngineUpgradeStopped": lambda n: (
        f"a newer engine release waits: {count(n['stuck'], 'service')} stuck in the move to it, such as {n['first']},"
        f" and at most {n['budget']:g} may be (engine.upgrade.stuckServices of the chart)"
    ),
    "ReleasesFirst": lambda n: (
        f"no node had room for additional pods for {_seconds(n['after'])} (rollout.releaseAfter): old pods are removed"
        " first"
    ),
    "EngineUpgradePending": lambda n: (
        "a newer engine release waits for its turn" + (f", after {n['holder']}" if n["holder"] else "")
    ),
}
"""All other reasons."""

_SENTENCES = _TRAFFIC | _STATE

FOLLOW_TRAFFIC = frozenset(_TRAFFIC) | {"ScaleUpHeld", "ScaleDownHeld", "Measuring"}
"""Reasons of conditions that come and go with the traffic. Also those of a change that is held back, and the one that
each window of samples begins with, as after a restart of the operator."""

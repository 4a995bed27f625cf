"""Every reason in words: the one place where decisions become text.

A sentence is made from a reason's code and numbers alone, so that whoever has a decision (status, events, a simulation)
says the same about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inflight_operator.decide.decision import Decision, Number, Reason
from inflight_operator.quantities import format_price, format_seconds

_Numbers = Mapping[str, Number]


def sentence(reason: Reason) -> str:
    """The reason in words, with what held it back.

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


def _rate(value: Number) -> str:
    """Three digits, as people read a rate: 61.3, 0.42."""
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
    """What a change that is taken back brought."""
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


_SENTENCES: dict[str, Callable[[_Numbers], str]] = {
    # Replicas: what a target asks for.
    "WaitingRequests": lambda n: f"{_wait(n['waiting'])}, {n['target']:g} per replica is the target",
    "NoRequestsWait": lambda n: f"no request waits, {n['target']:g} per replica is the target",
    "KvUtilization": lambda n: f"{n['kv']:.0%} of the KV cache is in use, {n['target']:.0%} is the target",
    "TtftOverTarget": lambda n: (
        f"p95 TTFT {_seconds(n['ttft'])} over target {_seconds(n['ttft_target'])}"
        + (f" while {_wait(n['waiting'])}" if "waiting" in n else f", {_room(n)}")
    ),
    "TtftWithinTarget": lambda n: f"p95 TTFT holds the target {_seconds(n['ttft_target'])}",
    "TpotBeyondLimits": lambda n: (
        f"p95 TPOT {_seconds(n['tpot'])} over target {_seconds(n['tpot_target'])}, and no limit is left to lower it"
    ),
    "TpotWithinTarget": lambda n: f"p95 TPOT holds the target {_seconds(n['tpot_target'])}",
    "Concurrency": lambda n: f"{n['concurrency']:.1f} requests in each replica, {n['target']:g} is the target",
    "Demand": lambda n: (
        f"{count(n['replicas'], 'replica')}: {_rate(n['rate'])} of {n['prompt']:,.0f} + {n['output']:,.0f} tokens need"
        f" {n['need']:.1f} at {_rate(n['each']).removesuffix(' requests/s')}/s each, margin {n['margin']:.1f}"
        + (f", {n['backlog']:.1f} for {count(n['waiting'], 'waiting request')}" if "backlog" in n else "")
        + (f", ready in {n['ready']:.0f} s" if "ready" in n else "")
    ),
    "LatelyNeeded": lambda n: f"{n['lately']:.1f} were needed lately",
    "SeasonNeeded": lambda n: f"{n['lately']:.1f} were needed at this time yesterday or a week ago",
    "TargetsOutOfReach": lambda n: (
        "by its cost model no engine keeps spec.slo at any load: capacity is counted without"
    ),
    "NoDemand": lambda n: "no request came since the operator watches",
    "DemandNotKnown": lambda n: "demand was not watched for long enough: not scaling down",
    "BelowMinReplicas": lambda n: f"minReplicas is {n['bound']}",
    "AboveMaxReplicas": lambda n: f"maxReplicas is {n['bound']}",
    "Cost": lambda n: (
        f"{_price(n, 'per_hour')} an hour for {count(n['replicas'], 'pod')}"
        + (f", {_price(n, 'per_million')} for a million tokens" if "per_million" in n else "")
    ),
    # Replicas: what leaves them as they are.
    "NoTargets": lambda n: "no scaling target is set: replicas stay as they are",
    "NoReadyPods": lambda n: "no pod is ready yet: replicas stay as they are",
    "MetricsMissing": lambda n: (
        f"{n['stale']} of {count(n['ready'], 'ready pod')} show no fresh metrics: not scaling down"
        if n["stale"] != n["ready"]
        else f"none of {count(n['ready'], 'ready pod')} shows fresh metrics: replicas stay as they are"
    ),
    "AsDesired": lambda n: f"{count(n['replicas'], 'replica')} {'is' if n['replicas'] == 1 else 'are'} right",
    "Settling": lambda n: "waiting for the effect of the last change",
    "ScaleUpWindow": lambda n: f"held by the scale-up window for {n['seconds']} s more",
    "ScaleDownWindow": lambda n: f"held by the scale-down window for {n['seconds']} s more",
    "ScalingDisabled": lambda n: f"behavior.{n['direction']}.selectPolicy is Disabled",
    "RateLimited": lambda n: f"{n['wanted']} are wanted, behavior.{n['direction']}.policies allow {n['allowed']} now",
    "MaxReplicas": lambda n: f"maxReplicas {n['bound']} is reached",
    "MinReplicas": lambda n: f"minReplicas is {n['bound']}",
    "Blocked": lambda n: f"{_pods_blocked(n)} ({n['cause']}) and {'counts' if n['blocked'] == 1 else 'count'} as none",
    "BlockedNoMore": lambda n: (
        f"{_pods_blocked(n)} ({n['cause']}): no further replica is ordered while that lasts, {n['wanted']} are wanted"
    ),
    "StartingLate": lambda n: (
        f"{count(n['late'], 'replica')} {'starts' if n['late'] == 1 else 'start'} for longer than usual and"
        f" {'counts' if n['late'] == 1 else 'count'} as none"
    ),
    "NoMoreWhileLate": lambda n: f"no further replica is ordered while that lasts, {n['wanted']} are wanted",
    "External": lambda n: f"spec.replicas counts; the operator finds {n['replicas']} right",
    "ReplicasUnset": lambda n: (
        f"spec.replicas is not set: {count(n['kept'], 'replica')} {'is' if n['kept'] == 1 else 'are'} kept; the"
        f" operator finds {n['replicas']} right"
    ),
    # Limits: steps.
    "Preemptions": lambda n: f"{n['preemptions']:.0f} preemptions/min, KV cache {n['kv']:.0%} full",
    "TpotOverTarget": lambda n: (
        f"{_tpot(n)} over target {_seconds(n['tpot_target'])}" + (", prefill fills the steps" if n["prefill"] else "")
    ),
    "RequestsWait": lambda n: f"{n['waiting']:.0f} requests wait, {_room(n)}",
    "TakenBack": lambda n: f"taken back, {_since(n)}",
    "ByCostModel": lambda n: (
        f"{_full_step(n)}; {n['rate']:.3g} requests/s under overload, {n['rate_now']:.3g} with the limits in force"
    ),
    "Canary": lambda n: f"on pod {n['pod']} first, to be compared with the others",
    "CanaryHeld": lambda n: f"all pods follow {n['pod']}, {_kept(n)} on the others",
    "CanaryLost": lambda n: f"pod {n['pod']} goes back: {_kept(n)} on the others{_tokens(n)}",
    "CanaryEnded": lambda n: f"pod {n['pod']} goes back: there is nothing to compare it with any more",
    "MoveTakenBack": lambda n: f"taken back: {_kept(n)} before{_tokens(n)}",
    "IntoBounds": lambda n: "the bounds of spec.tuning or the capacity end there",
    "ByHand": lambda n: f"set by hand in spec.tuning.override until {n['until']}",
    "OverrideEnded": lambda n: f"the override ended at {n['until']}: the limits before it return",
    "OverrideRemoved": lambda n: "the override was removed: the limits before it return",
    # Limits: what leaves them as they are.
    "Overridden": lambda n: (
        f"tuning is paused until {n['until']}: spec.tuning.override holds max_num_seqs {n['seqs']} and"
        f" max_num_batched_tokens {n['tokens']}"
    ),
    "OverrideExpired": lambda n: f"spec.tuning.override ended at {n['until']} and has no effect: it can be removed",
    "Off": lambda n: "tuning.mode is Off: engines run at their capacities",
    "Measuring": lambda n: f"measuring the limits in force for {n['seconds']} s more",
    "Draining": lambda n: (
        f"waiting for max_num_seqs to take hold: {n['running']} requests still run, {n['limit']} is the limit"
    ),
    "NoTraffic": lambda n: "no traffic: limits stay as they are",
    "InDeadBand": lambda n: (
        f"p95 TPOT {_seconds(n['tpot'])}, target {_seconds(n['tpot_target'])}: no step would help"
        if "tpot" in n
        else f"{n['running']:.0f} requests run, {n['waiting']:.0f} wait: no limit is in the way"
    ),
    "AsModelled": lambda n: f"the limits are right: {_full_step(n)}",
    "BracketClosed": lambda n: f"the limits around these served worse: {_full_step(n)}",
    "Kept": lambda n: f"the last change stays: {_kept(n)} before",
    "NoWayBack": lambda n: f"{_since(n)}, but the bounds allow no way back",
    "Recommending": lambda n: f"would change {n['knob']} {n['from']} -> {n['to']}",
    "NoLimits": lambda n: "no ready engine reports its limits",
    "NoReadyEngines": lambda n: "no engine is ready to be tuned",
    "NoAdminPort": lambda n: "engines of an earlier release keep their limits until their release is upgraded",
    "LimitsNotTaken": lambda n: str(n["said"]),
    # The pod template.
    "SpecNotUnderstood": lambda n: (
        f"{n['said']}. Pods stay as they are, scaling and tuning go on: correct the spec, or upgrade the operator if"
        " it is older than the CustomResourceDefinition"
    ),
    "EngineUpgrade": lambda n: "pods are moving to a newer engine release",
    "EngineUpgradePending": lambda n: (
        "a newer engine release waits for its turn" + (f", after {n['holder']}" if n["holder"] else "")
    ),
}

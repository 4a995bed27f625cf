"""The commands' view of an InferenceService, parsed leniently: defaults of absent fields are defined here.

The plugin knows the resource by its schema alone; it does not import the operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from inflight_base.manifest import defaults
from inflight_base.manifest.engines import EngineType, engine_type_of
from inflight_base.manifest.lenient import Part
from inflight_base.manifest.units import parse_duration
from inflight_kubectl.access.pods import moment
from inflight_settings.limits import Limits

State = Literal[
    "Ready", "Degraded", "Updating", "Starting", "Stopped", "Asleep", "Idle", "Waking", "Failing", "Unknown"
]
"""State of a service. Idle: at zero, and the next request starts a replica. Waking: requests wait at the gateway for
the first replica. Asleep: all replicas are ready without a KV cache."""


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: str
    reason: str
    message: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Decision:
    """Attributes:
    kind: Scaling or Tuning.
    code: reason in one word.
    numbers: measurements and targets.
    change: text such as `replicas 1 -> 2`.
    applied: False for advice.
    """

    time: datetime | None
    kind: str
    knob: str
    before: int | None
    after: int | None
    code: str
    numbers: Mapping[str, float]
    change: str
    reason: str
    applied: bool


@dataclass(frozen=True, slots=True)
class LimitsStatus(Limits):
    """Limits in force.

    Attributes:
        pods_in_force: pods that have confirmed them.
        canary: the canary pod and its limits; None without one.
    """

    pods_in_force: int
    canary: tuple[str, int, int] | None


@dataclass(frozen=True, slots=True)
class Observed:
    """Combined reports of all engines; latencies in seconds, None without a request."""

    running: int
    kv: float | None
    ttft_p95: float | None
    tpot_p95: float | None
    preemptions_per_minute: float
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Queue:
    """Waiting requests, from the operator's last status.

    Attributes:
        waiting: all of them.
        at_gateway, in_engines: those that wait for a replica, and those that wait for a slot of one.
    """

    waiting: int
    at_gateway: int
    in_engines: int

    @property
    def text(self) -> str:
        """The number in words, with both parts where requests wait at the gateway."""
        waits = f"{self.waiting} request{' waits' if self.waiting == 1 else 's wait'}"
        return f"{waits} ({self.at_gateway} at the gateway, {self.in_engines} in engines)" if self.at_gateway else waits


@dataclass(frozen=True, slots=True)
class Loading:
    """Progress of a pod that reads its model, from the operator's last status. Attributes: share: of the bytes."""

    share: float
    summary: str


@dataclass(frozen=True, slots=True)
class Service:
    """Attributes:
    ordered: desired replicas; None before the operator has decided.
    replicas: existing pods. ready: pods that take requests.
    blocked: replicas that will not become ready without intervention; None if the operator does not report it.
    ttft_target, tpot_target: seconds.
    has_slo: True if the user sets the targets, else they are the defaults.
    decisions: decisions, oldest first.
    queue: waiting requests; None while neither engines nor the gateway report.
    in_flight: requests that the gateway has sent to engines; None for a service that is not behind it.
    raw: the object as returned by the API server.
    """

    namespace: str
    name: str
    uid: str
    created: datetime | None
    deleting: bool
    generation: int
    observed_generation: int | None
    model: str
    ordered: int | None
    replicas: int
    ready: int
    blocked: int | None
    ttft_target: float
    tpot_target: float
    has_slo: bool
    limits: LimitsStatus | None
    observed: Observed | None
    conditions: tuple[Condition, ...]
    decisions: tuple[Decision, ...]
    queue: Queue | None
    in_flight: int | None
    raw: Mapping[str, Any] = field(repr=False)

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def spec(self) -> Mapping[str, Any]:
        """Stored spec, including the schema's defaults."""
        return self.raw.get("spec") or {}

    @property
    def status(self) -> Mapping[str, Any]:
        """Stored status."""
        return self.raw.get("status") or {}

    @property
    def engine(self) -> EngineType:
        """Type of its engines."""
        return engine_type_of(self.raw)

    @property
    def live_limits(self) -> bool:
        """True if limits of running engines can change: the type can, and the operator has what it takes."""
        tuning = self.condition("TuningActive")
        return self.engine.live_limits and (tuning is None or tuning.reason != "NoPluginImage")

    @property
    def loading(self) -> Mapping[str, Loading]:
        """Progress of long starts, by the name of the pod."""
        return {
            one["pod"]: Loading(one["bytes"] / max(1, one["totalBytes"]), one["summary"])
            for one in self.status.get("loading") or ()
        }

    def condition(self, kind: str) -> Condition | None:
        """Returns the condition of a type; None before the operator has written it."""
        return next((one for one in self.conditions if one.type == kind), None)

    @property
    def state(self) -> State:
        """State of the service in one word."""
        ready, progressing = self.condition("Ready"), self.condition("Progressing")
        if ready is None:
            return "Unknown"
        stuck = progressing is not None and progressing.status == "False" and progressing.reason != "Complete"
        if ready.status == "True":
            if ready.reason in ("Idle", "Waking"):
                return "Idle" if ready.reason == "Idle" else "Waking"
            if stuck or ready.reason not in ("Serving", "Asleep"):
                return "Degraded"
            if progressing is not None and (progressing.status, progressing.reason) == ("True", "RollingOut"):
                return "Updating"
            return "Asleep" if ready.reason == "Asleep" else "Ready"
        if ready.reason == "ScaledToZero":
            return "Stopped"
        on_the_way = ready.reason in ("Starting", "Scheduling", "Loading", "NotRouted")
        return "Starting" if on_the_way and not stuck else "Failing"

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Service:
        """Reads the object returned by the API server."""
        metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
        slo, external = Part(spec.get("slo"), "spec.slo", []), (spec.get("scaling") or {}).get("mode") == "External"
        ordered = spec.get("replicas") if external else status.get("desiredReplicas")
        return cls(
            namespace=metadata.get("namespace", ""),
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            created=moment(metadata.get("creationTimestamp")),
            deleting="deletionTimestamp" in metadata,
            generation=metadata.get("generation", 1),
            observed_generation=status.get("observedGeneration"),
            model=(spec.get("model") or {}).get("source", ""),
            ordered=ordered,
            replicas=status.get("replicas") or 0,
            ready=status.get("readyReplicas") or 0,
            blocked=status.get("blockedReplicas"),
            ttft_target=slo.seconds("ttftP95", parse_duration(defaults.TTFT_P95)),
            tpot_target=slo.seconds("tpotP95", parse_duration(defaults.TPOT_P95)),
            has_slo=bool(spec.get("slo")),
            limits=_limits(status.get("limits")),
            observed=_observed(status.get("observed")),
            conditions=tuple(_condition(one) for one in status.get("conditions") or ()),
            decisions=tuple(_decision(one) for one in status.get("decisions") or ()),
            queue=_queue(status.get("queue")),
            in_flight=(status.get("gateway") or {}).get("inFlight"),
            raw=body,
        )


def _condition(body: Mapping[str, Any]) -> Condition:
    return Condition(
        type=body.get("type", ""),
        status=body.get("status", "Unknown"),
        reason=body.get("reason", ""),
        message=body.get("message", ""),
        since=moment(body.get("lastTransitionTime")),
    )


def _decision(body: Mapping[str, Any]) -> Decision:
    return Decision(
        time=moment(body.get("time")),
        kind=body.get("kind", ""),
        knob=body.get("knob") or "",
        before=body.get("from"),
        after=body.get("to"),
        code=body.get("code") or "",
        numbers=dict(body.get("numbers") or {}),
        change=body.get("change", ""),
        reason=body.get("reason", ""),
        applied=body.get("applied", True),
    )


def _limits(body: Mapping[str, Any] | None) -> LimitsStatus | None:
    if not body:
        return None
    canary = body.get("canary")
    return LimitsStatus(
        max_num_seqs=body["maxNumSeqs"],
        max_num_batched_tokens=body["maxNumBatchedTokens"],
        pods_in_force=body.get("podsInForce", 0),
        canary=(canary["pod"], canary["maxNumSeqs"], canary["maxNumBatchedTokens"]) if canary else None,
    )


def _queue(body: Mapping[str, Any] | None) -> Queue | None:
    return Queue(*(body.get(name, 0) for name in ("waiting", "atGateway", "inEngines"))) if body else None


def _observed(body: Mapping[str, Any] | None) -> Observed | None:
    if not body:
        return None
    times = Part(body, "status.observed", [])
    return Observed(
        running=body.get("running", 0),
        kv=body.get("kvUtilization"),
        ttft_p95=times.seconds("ttftP95", None),
        tpot_p95=times.seconds("tpotP95", None),
        preemptions_per_minute=body.get("preemptionsPerMinute", 0.0),
        at=moment(body.get("at")),
    )

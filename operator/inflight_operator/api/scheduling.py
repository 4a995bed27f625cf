"""spec.engine.scheduling: scheduling and preemption in an engine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from inflight_operator.api.base import SpecModel, validation
from inflight_operator.api.duration import Duration, duration_field, optional_duration_field

BOUNDS = ("1ms", "240h")
"""Of the durations here; the engine's flags for them take no longer and hardly shorter ones."""


class ClassSLO(SpecModel):
    """The latency one class of requests should keep."""

    ttft_p95: Duration | None = optional_duration_field(
        "engine.scheduling.classes.slo.ttftP95",
        "Time to first token that 95% of this class's requests should stay under, such as 500ms; engines count how many"
        " do, and policy deadline orders by it. Default: slo.ttftP95 of the service for the order, and no count.",
        BOUNDS,
    )
    tpot_p95: Duration | None = optional_duration_field(
        "engine.scheduling.classes.slo.tpotP95",
        "Time per output token after the first that 95% of this class's requests should stay under, such as 50ms;"
        " engines count how many do. Default: no target.",
        BOUNDS,
    )


class ServiceClass(SpecModel):
    """A kind of traffic with a queue of its own; a request names it in `class`."""

    name: str = Field(
        max_length=63,
        description="What requests put in `class`: at most 63 characters of a-z, 0-9 and -.",
        json_schema_extra=validation(
            "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            "engine.scheduling.classes.name must be at most 63 characters of a-z, 0-9 and -, and begin and end with"
            " a letter or digit, such as interactive",
        ),
    )
    weight: float = Field(
        default=1.0,
        le=1000000,
        description="The class's share of prompt and output tokens while several classes have requests waiting,"
        " relative to the weights of the others: with 4 and 1, four tokens to one. Above 0.",
        json_schema_extra=validation(
            "self > 0.0", "engine.scheduling.classes.weight must be above 0, such as 4: a class of 0 would starve"
        ),
    )
    priority: int = Field(
        default=0,
        ge=-100,
        le=100,
        description="For policy priority: the number of requests of this class that bring none, from -100 to 100. A"
        " smaller number is served earlier than others of the same class; between classes the weights decide.",
    )
    slo: ClassSLO = Field(default_factory=ClassSLO, description="The latency this class should keep.")
    max_queued_requests: int | None = Field(
        default=None,
        ge=1,
        le=1000000,
        description="Requests of this class that may wait in an engine; more are answered 503 with Retry-After."
        " Default: only engine.maxQueuedRequests bounds them, over all classes.",
    )
    shed_after: Duration | None = optional_duration_field(
        "engine.scheduling.classes.shedAfter",
        "As engine.scheduling.shedAfter, for this class. Default: that of engine.scheduling.",
        BOUNDS,
    )
    request_timeout: Duration | None = optional_duration_field(
        "engine.scheduling.classes.requestTimeout",
        "As engine.requestTimeout, for this class. Default: that of the engine.",
        BOUNDS,
    )


class Scheduling(SpecModel):
    """Scheduling and preemption in an engine."""

    policy: Literal["fcfs", "sjf", "priority", "fair", "deadline"] | None = Field(
        default=None,
        description="Order of waiting requests within a class. fcfs: as they came. sjf: those with the fewest output"
        " tokens to expect first (expected_output_tokens of the request, else its max_tokens). priority: those with the"
        " smallest priority number first. fair: those of the tenant that was served least first: of the API key with"
        " gateway.enabled, else of the header X-Inflight-Tenant, which needs --trust-tenant-header in"
        " engine.extraArgs. deadline: as they came, those first that can still keep their target (slo.ttftP95 of the"
        " class, else of the service); one turn in twenty goes to requests that cannot, so that none starves. Default:"
        " deadline where there is such a target, else fcfs.",
    )
    shed_after: Duration | None = optional_duration_field(
        "engine.scheduling.shedAfter",
        "A request that is predicted to wait longer in an engine's queue is answered 503 with Retry-After at once."
        " Default: every request may wait.",
        BOUNDS,
    )
    priority_aging: Duration = duration_field(
        "engine.scheduling.priorityAging",
        "For policy priority, and for requests that wait at the gateway: how long a request waits until it counts as"
        " one step of priority more urgent, so that no request starves.",
        "10s",
        BOUNDS,
    )
    preemption: Literal["auto", "recompute", "swap"] = Field(
        default="auto",
        description="What becomes of a request that has to give its KV cache to others for a while. recompute: its"
        " tokens are computed again. swap: its cache is copied to host memory and back (needs kvCache.swap; recompute"
        " while that is full). auto: whichever is measured to be cheaper; without kvCache.swap, recompute.",
    )
    preemption_victim: Literal["lastArrived", "longestFirst", "mostPreemptedLast"] = Field(
        default="lastArrived",
        description="Which running request is preempted when the KV cache is full. lastArrived: the newest."
        " longestFirst: the one with the most tokens. mostPreemptedLast: the one with the fewest preemptions so far.",
    )
    classes: Annotated[list[ServiceClass], Field(max_length=32)] = Field(
        default_factory=list,
        description="Classes of requests, each with its own queue. A request without a class belongs to the first."
        " Default: one class for all.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )

"""spec.engine.scheduling: scheduling and preemption in an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import Field
from pydantic.alias_generators import to_camel

from inflight_operator.api.base import SpecModel, validation
from inflight_operator.api.duration import Duration
from inflight_operator.api.setting import setting_duration, setting_field
from inflight_settings import scheduling
from inflight_settings.scheduling import PolicyName, PreemptionMode, VictimName

BOUNDS = ("1ms", "240h")
"""Minimum and maximum of the durations here; the engine's flags accept no longer and hardly shorter ones."""

MOST_QUEUED = 1_000_000
"""Highest bounds of waiting requests."""

if TYPE_CHECKING:
    Victim = str
else:
    Victim = Literal[tuple(map(to_camel, get_args(VictimName)))]


class ClassSLO(SpecModel):
    """Latency targets of one class of requests."""

    ttft_p95: Duration | None = setting_duration(
        "ttft_target",
        "engine.scheduling.classes.slo.ttftP95",
        "Time to first token that 95% of this class's requests should stay under, such as 500ms; engines count how many"
        " do, and policy deadline orders by it. Default: slo.ttftP95 of the service for the order, and no count.",
        BOUNDS,
        owner=scheduling.ServiceClass,
    )
    tpot_p95: Duration | None = setting_duration(
        "tpot_target",
        "engine.scheduling.classes.slo.tpotP95",
        "Time per output token after the first that 95% of this class's requests should stay under, such as 50ms;"
        " engines count how many do. Default: no target.",
        BOUNDS,
        owner=scheduling.ServiceClass,
    )


class ServiceClass(SpecModel):
    """A kind of traffic with a queue of its own; a request names it in `class`."""

    name: str = Field(
        max_length=63,
        description="Name of the class, which requests give in `class`: at most 63 characters of a-z, 0-9 and -.",
        json_schema_extra=validation(
            "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            "engine.scheduling.classes.name must be at most 63 characters of a-z, 0-9 and -, and begin and end with"
            " a letter or digit, such as interactive",
        ),
    )
    weight: float = setting_field(
        "weight",
        "The class's share of prompt and output tokens while several classes have requests waiting,"
        " relative to the weights of the others: with 4 and 1, four tokens to one. Above 0.",
        json_schema_extra=validation(
            "self > 0.0", "engine.scheduling.classes.weight must be above 0, such as 4: a class of 0 would starve"
        ),
        owner=scheduling.ServiceClass,
    )
    priority: int = setting_field(
        "priority",
        "Priority of this class's requests that bring none, from -100 to 100; policy priority uses it. A"
        " request with a smaller number is served earlier within the class; between classes the weights decide.",
        owner=scheduling.ServiceClass,
    )
    slo: ClassSLO = Field(default_factory=ClassSLO, description="Latency targets of this class.")
    max_queued_requests: int | None = setting_field(
        "max_queued_requests",
        "Requests of this class that may wait in an engine; more are answered 503 with Retry-After. Default: only"
        " engine.maxQueuedRequests bounds them, over all classes.",
        le=MOST_QUEUED,
        owner=scheduling.ServiceClass,
    )
    shed_after: Duration | None = setting_duration(
        "shed_after",
        "engine.scheduling.classes.shedAfter",
        "Predicted wait of this class's requests above which they are answered 503 at once. Default:"
        " engine.scheduling.shedAfter.",
        BOUNDS,
        owner=scheduling.ServiceClass,
    )
    request_timeout: Duration | None = setting_duration(
        "request_timeout",
        "engine.scheduling.classes.requestTimeout",
        "Maximum time without progress of this class's requests, as in engine.requestTimeout, which is the default.",
        BOUNDS,
        owner=scheduling.ServiceClass,
    )


class Scheduling(SpecModel):
    """Scheduling and preemption in an engine."""

    policy: PolicyName | None = setting_field(
        "policy",
        "Order of waiting requests within a class. fcfs: in order of arrival. sjf: by the expected number"
        " of output tokens, fewest first (expected_output_tokens of the request, else its max_tokens). priority: by"
        " priority number, smallest first. fair: by tenant, least served first; the tenant is that of the API key with"
        " gateway.enabled, else the header X-Inflight-Tenant, which needs --trust-tenant-header in engine.extraArgs."
        " deadline: in order of arrival, but requests that can still keep their target (slo.ttftP95 of the class, else"
        " of the service) go first; requests that cannot get one prompt token in twenty, and at least one turn in five"
        " once the oldest of them has waited for half of engine.queueTimeout. Default: deadline if there is such a"
        " target, else fcfs. The gateway orders held requests by targets under deadline only.",
    )
    shed_after: Duration | None = setting_duration(
        "shed_after",
        "engine.scheduling.shedAfter",
        "Predicted wait in an engine's queue above which a request is answered 503 with Retry-After at once. A request"
        " that is predicted to wait longer does not enter the queue. Default: no request is rejected for its wait.",
        BOUNDS,
    )
    priority_aging: Duration = setting_duration(
        "priority_aging",
        "engine.scheduling.priorityAging",
        "Waiting time after which a request counts as one step of priority more urgent, so that no request starves. It"
        " applies to policy priority, and to requests that wait at the gateway.",
        BOUNDS,
    )
    preemption: PreemptionMode = setting_field(
        "preemption",
        "How KV blocks that left the cache come back to a request, a preempted one too. recompute: its tokens are"
        " computed again. swap: blocks that the cache evicts are copied to host memory and loaded from there where they"
        " are there (needs kvCache.swap). auto: the cheaper of both by measurement; without kvCache.swap, recompute.",
    )
    preemption_victim: Victim = setting_field(
        "preemption_victim",
        "Running request that is preempted when the KV cache is full. lastArrived: the newest."
        " longestFirst: the request with the most tokens. mostPreemptedLast: the request with the fewest preemptions so"
        " far.",
    )
    classes: Annotated[list[ServiceClass], Field(max_length=32)] = Field(
        default_factory=list,
        description="Classes of requests, each with its own queue. A request without a class belongs to the first."
        " Default: one class for all.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )

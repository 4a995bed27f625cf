"""spec.scaling: number of replicas and rate of change. Terms as in autoscaling/v2."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from inflight_base.manifest import defaults
from inflight_operator.api.base import SpecModel, validation
from inflight_operator.api.duration import Duration, duration_field


class Targets(SpecModel):
    """Load that one replica should carry. Replicas are added when a target is exceeded. Unset targets do not bind: the
    operator then decides by the capacity that it computes from the engines' measured step costs."""

    waiting_requests: int | None = Field(
        default=None,
        ge=1,
        le=1000000,
        description="Waiting requests for each replica. Until engines export step costs, 4 applies if unset.",
    )
    concurrency: int | None = Field(
        default=None, ge=1, le=1000000, description="Running and waiting requests for each replica."
    )
    kv_utilization: float | None = Field(
        default=None,
        description="Share of the KV cache in use, above 0 and at most 1. Until engines export step costs, 0.8 applies"
        " if unset.",
        json_schema_extra=validation(
            "self > 0.0 && self <= 1.0", "scaling.targets.kvUtilization must be above 0 and at most 1, such as 0.8"
        ),
    )


class ScalingPolicy(SpecModel):
    """Bound on the rate at which the number of replicas changes."""

    type: Literal["Pods", "Percent"] = Field(description="Unit of value: pods, or percent of the replicas.")
    value: int = Field(ge=1, le=1000000, description="Maximum change in one period, in pods or percent.")
    period_seconds: int = Field(ge=1, le=1800, description="Length of the period, in seconds.")


class ScaleUpRules(SpecModel):
    """Rules for adding replicas. Terms as in autoscaling/v2."""

    stabilization_window_seconds: int = Field(
        default=0,
        ge=0,
        le=3600,
        description="Length of the window in seconds: replicas are added only up to the lowest recommendation within"
        " it.",
    )
    select_policy: Literal["Max", "Min", "Disabled"] = Field(
        default="Max", description="Policy in effect: Max allows the largest change, Min the smallest, Disabled none."
    )
    policies: list[ScalingPolicy] = Field(
        default=[
            ScalingPolicy(type="Percent", value=400, period_seconds=15),
            ScalingPolicy(type="Pods", value=16, period_seconds=15),
        ],
        min_length=1,
        max_length=16,
        description="Bounds on the rate of change.",
    )


class ScaleDownRules(SpecModel):
    """Rules for removing replicas. Terms as in autoscaling/v2."""

    stabilization_window_seconds: int = Field(
        default=defaults.SCALE_DOWN_SECONDS,
        ge=0,
        le=3600,
        description="Length of the window in seconds: replicas are removed only down to the highest recommendation"
        " within it.",
    )
    select_policy: Literal["Max", "Min", "Disabled"] = Field(
        default="Max", description="Policy in effect: Max allows the largest change, Min the smallest, Disabled none."
    )
    policies: list[ScalingPolicy] = Field(
        default=[ScalingPolicy(type="Percent", value=100, period_seconds=15)],
        min_length=1,
        max_length=16,
        description="Bounds on the rate of change.",
    )


class Behavior(SpecModel):
    """Rate at which the number of replicas changes."""

    scale_up: ScaleUpRules = Field(default_factory=ScaleUpRules, description="Rules for adding replicas.")
    scale_down: ScaleDownRules = Field(default_factory=ScaleDownRules, description="Rules for removing replicas.")


class Sleep(SpecModel):
    """Sleep of replicas without requests. On CPUs and for engine.type inflight only."""

    after: Duration = duration_field(
        "scaling.sleep.after",
        "Time without requests after which a replica gives back the memory of its KV cache, and of engine.kvCache.swap."
        " It keeps the weights, its pod and what that requests, stays Ready, and wakes with its next request. A change"
        " rolls out new pods.",
        ...,
        ("1s", "168h"),
    )


class Scaling(SpecModel):
    """Number of replicas."""

    mode: Literal["Operator", "External"] = Field(
        default="Operator",
        description="Source of the number of replicas. Operator: the operator decides from demand and measured"
        " capacity. External: spec.replicas, which `kubectl scale`, an HPA or KEDA write through the scale subresource."
        " Set it in the same change as the mode, because the scale subresource cannot be read while it is unset.",
    )
    min_replicas: int = Field(
        default=defaults.MIN_REPLICAS,
        ge=0,
        le=10000,
        description="Minimum number of replicas in mode Operator. 0 needs gateway.enabled: the service then scales to"
        " zero after idleTimeout, and the first request, which the gateway holds, starts a replica.",
    )
    max_replicas: int = Field(
        default=defaults.MAX_REPLICAS, ge=1, le=10000, description="Maximum number of replicas in mode Operator."
    )
    idle_timeout: Duration = duration_field(
        "scaling.idleTimeout",
        "Time without any request after which a service with minReplicas 0 scales to zero.",
        defaults.IDLE_TIMEOUT,
        ("10s", "168h"),
    )
    sleep: Sleep | None = Field(
        default=None, description="Sleep of replicas without requests. Default: replicas never sleep."
    )
    targets: Targets = Field(default_factory=Targets, description="Load that one replica should carry.")
    behavior: Behavior = Field(default_factory=Behavior, description="Rate at which the number of replicas changes.")

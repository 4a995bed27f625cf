"""spec.scaling: number of replicas and rate of change. Terms as in autoscaling/v2."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from inflight_base.manifest import defaults
from inflight_operator.api.base import SpecModel, validation
from inflight_operator.api.duration import Duration, duration_field


class Targets(SpecModel):
    """What one replica should carry; replicas are added when a target is passed. Unset: the operator decides by the
    capacity that it computes from the engines' measured step costs alone."""

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
    """One bound on how fast replicas change."""

    type: Literal["Pods", "Percent"] = Field(description="Whether value counts pods or percent of the replicas.")
    value: int = Field(ge=1, le=1000000, description="Most pods, or percent, changed in one period.")
    period_seconds: int = Field(ge=1, le=1800, description="Length of the period.")


class ScaleUpRules(SpecModel):
    """How replicas are added. Terms as in autoscaling/v2."""

    stabilization_window_seconds: int = Field(
        default=0, ge=0, le=3600, description="Scale up only to the lowest recommendation within this window."
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
        description="Bounds on the change.",
    )


class ScaleDownRules(SpecModel):
    """How replicas are removed. Terms as in autoscaling/v2."""

    stabilization_window_seconds: int = Field(
        default=defaults.SCALE_DOWN_SECONDS,
        ge=0,
        le=3600,
        description="Scale down only to the highest recommendation within this window.",
    )
    select_policy: Literal["Max", "Min", "Disabled"] = Field(
        default="Max", description="Policy in effect: Max allows the largest change, Min the smallest, Disabled none."
    )
    policies: list[ScalingPolicy] = Field(
        default=[ScalingPolicy(type="Percent", value=100, period_seconds=15)],
        min_length=1,
        max_length=16,
        description="Bounds on the change.",
    )


class Behavior(SpecModel):
    """How fast replicas change."""

    scale_up: ScaleUpRules = Field(default_factory=ScaleUpRules, description="How replicas are added.")
    scale_down: ScaleDownRules = Field(default_factory=ScaleDownRules, description="How replicas are removed.")


class Scaling(SpecModel):
    """How many replicas there are."""

    mode: Literal["Operator", "External"] = Field(
        default="Operator",
        description="Operator: the operator decides from demand and measured capacity. External: spec.replicas counts,"
        " which `kubectl scale`, an HPA or KEDA write through the scale subresource; set it in the same change as the"
        " mode, since the scale subresource cannot be read while it is unset.",
    )
    min_replicas: int = Field(
        default=defaults.MIN_REPLICAS,
        ge=0,
        le=10000,
        description="Fewest replicas in mode Operator. 0 needs gateway.enabled: the service then scales to zero after"
        " idleTimeout, and the first request, which the gateway holds, starts a replica.",
    )
    max_replicas: int = Field(
        default=defaults.MAX_REPLICAS, ge=1, le=10000, description="Most replicas in mode Operator."
    )
    idle_timeout: Duration = duration_field(
        "scaling.idleTimeout",
        "With minReplicas 0: time without any request after which the service scales to zero.",
        defaults.IDLE_TIMEOUT,
        ("10s", "168h"),
    )
    targets: Targets = Field(default_factory=Targets, description="Load that one replica should carry.")
    behavior: Behavior = Field(default_factory=Behavior, description="How fast replicas change.")

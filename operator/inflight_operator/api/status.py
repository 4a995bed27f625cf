"""The status of an InferenceService: observed state, measurements, decisions and their reasons."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from inflight_operator.api.base import StatusModel, Timestamp
from inflight_settings.limits import Limits

MAX_DECISIONS = 10


class Condition(StatusModel):
    """One aspect of the service's state, as in `meta/v1` Condition."""

    type: str = Field(max_length=316, description="Name of the aspect, such as Ready.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(max_length=1024, description="Why, in one CamelCase word.")
    message: str = Field(max_length=32768, description="Why, in a sentence a person can act on.")
    observed_generation: int | None = Field(default=None, description="Generation of the spec it was found for.")
    last_transition_time: Timestamp = Field(description="When status last changed.")


class LimitsPair(StatusModel):
    """Both limits of an engine."""

    max_num_seqs: int = Field(description="Maximum requests that an engine runs at once.")
    max_num_batched_tokens: int = Field(description="Maximum tokens that an engine computes in one step.")

    @property
    def limits(self) -> Limits:
        return Limits(self.max_num_seqs, self.max_num_batched_tokens)


class CanaryStatus(LimitsPair):
    """A pod that tries other limits before all pods get them."""

    pod: str = Field(max_length=253, description="Name of the pod.")


class OverrideStatus(StatusModel):
    """Limits set by hand that are in force now."""

    until: Timestamp = Field(description="When they end.")
    before: LimitsPair = Field(description="The limits that return then.")


class LimitsStatus(LimitsPair):
    """The limits engines run with now."""

    revision: int = Field(description="Number of the change that set them.")
    pods_in_force: int = Field(description="Pods that have confirmed this revision.")
    source: Literal["Capacity", "Tuning", "Override"] | None = Field(
        default=None,
        description="What set them. Capacity: engine.maxNumSeqs and engine.maxNumBatchedTokens, which engines start"
        " with. Tuning: the operator. Override: spec.tuning.override.",
    )
    override: OverrideStatus | None = Field(
        default=None, description="The override in force; tuning is paused until it ends."
    )
    modelled: LimitsPair | None = Field(
        default=None,
        description="The limits that the cost model finds best for the recent requests, within the bounds of tuning.",
    )
    canary: CanaryStatus | None = Field(
        default=None, description="The pod that tries other limits now and is compared with the rest."
    )
    summary: str | None = Field(default=None, description="maxNumSeqs/maxNumBatchedTokens in short.")

    def model_post_init(self, context: Any, /) -> None:
        object.__setattr__(self, "summary", f"{self.max_num_seqs}/{self.max_num_batched_tokens}")
        self.__pydantic_fields_set__.add("summary")


class ObservedStatus(StatusModel):
    """What the ready engines last reported, together."""

    queue_depth: int = Field(description="Requests waiting, over all engines.")
    running: int = Field(description="Requests running, over all engines.")
    kv_utilization: float = Field(description="Share of the KV cache in use, 0 to 1, the mean of all engines.")
    ttft_p95: str | None = Field(
        default=None, description="95th percentile of time to first token over the last window."
    )
    tpot_p95: str | None = Field(
        default=None, description="95th percentile of time per output token over the last window."
    )
    preemptions_per_minute: float = Field(description="Requests preempted a minute, over all engines.")
    at: Timestamp = Field(description="When this was measured.")


class DemandStatus(StatusModel):
    """Demand against capacity, by the step costs that engines measure."""

    requests_per_second: float = Field(description="Requests per second expected when a replica ordered now is ready.")
    replica_requests_per_second: float = Field(
        description="Requests per second that one replica sustains, within the targets if it can keep them."
    )
    needed_replicas: float = Field(description="Replicas that the expected demand needs, without margin.")


class GatewayStatus(StatusModel):
    """What the gateway's pods last reported of the service, together."""

    held: int = Field(description="Requests that wait at the gateway for a replica.")
    held_prompt_tokens: int = Field(description="Prompt tokens of these requests, estimated.")
    in_flight: int = Field(description="Requests that the gateway has sent to engines and that have not ended.")


class CostStatus(StatusModel):
    """What the service costs, by spec.cost."""

    per_hour: str = Field(max_length=32, description="Cost of the pods there are for an hour.")
    per_million_tokens: str | None = Field(
        default=None,
        max_length=32,
        description="Cost of a million tokens, those of prompts and outputs together, over the last minutes.",
    )
    summary: str = Field(max_length=256, description="Both in a sentence.")


class EngineStatus(StatusModel):
    """The engine release that pods run."""

    image: str = Field(max_length=512, description="Engine image of the pod template in use.")
    upgrade: Literal["Pending", "Moving"] | None = Field(
        default=None,
        description="Where the service stands with a newer release: it waits for its turn, or its pods are being"
        " replaced.",
    )


class Decision(StatusModel):
    """A change the operator decided on, and why."""

    time: Timestamp = Field(description="When it was decided.")
    kind: Literal["Scaling", "Tuning"] = Field(description="Which knob: replicas, or the limits of engines.")
    knob: str | None = Field(default=None, max_length=64, description="replicas, or the name of a limit.")
    from_: int | None = Field(
        default=None, validation_alias="from", serialization_alias="from", description="Its value before."
    )
    to: int | None = Field(default=None, description="Its value from then on.")
    code: str | None = Field(default=None, max_length=64, description="The reason in one CamelCase word.")
    numbers: dict[str, float] = Field(
        default_factory=dict,
        description="What was measured, and what it was held against: durations in seconds, shares from 0 to 1.",
    )
    change: str = Field(max_length=256, description="What changed, such as `replicas 1 -> 2`.")
    reason: str = Field(max_length=1024, description="What was measured, and what it was held against, in words.")
    applied: bool = Field(description="False when tuning.mode is Recommend and nothing was changed.")


class InferenceServiceStatus(StatusModel):
    """What is there, what was measured, and what was decided. Written by the operator."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec this status is for.")
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        description="Ready, Scheduled, ModelLoaded, Progressing, MetricsAvailable, ScalingActive, TuningActive;"
        " GatewayReady with gateway.enabled; InferencePool with gateway.inferencePool.enabled; Idle and Waking"
        " with scaling.minReplicas 0.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    url: str | None = Field(default=None, description="Address of the service inside the cluster.")
    replicas: int | None = Field(default=None, description="Pods there are.")
    ready_replicas: int | None = Field(default=None, description="Pods that take requests.")
    blocked_replicas: int | None = Field(
        default=None, description="Replicas that will not become ready without intervention."
    )
    desired_replicas: int | None = Field(
        default=None, description="Replicas the operator decided on, also in mode External."
    )
    selector: str | None = Field(default=None, description="Label selector of the pods, for the scale subresource.")
    engine: EngineStatus | None = Field(default=None, description="The engine release that pods run.")
    limits: LimitsStatus | None = Field(default=None, description="The limits engines run with now.")
    observed: ObservedStatus | None = Field(default=None, description="What the ready engines last reported.")
    demand: DemandStatus | None = Field(
        default=None, description="Demand against capacity; once engines have measured what their steps cost."
    )
    gateway: GatewayStatus | None = Field(
        default=None, description="What the gateway reports; with gateway.enabled alone."
    )
    cost: CostStatus | None = Field(default=None, description="What the service costs; with spec.cost alone.")
    decisions: list[Decision] = Field(
        default_factory=list, max_length=MAX_DECISIONS, description="The last decisions, newest last."
    )

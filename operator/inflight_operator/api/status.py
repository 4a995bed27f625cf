"""The status of an InferenceService: observed state, measurements, decisions and their reasons."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from inflight_operator.api.base import StatusModel, Timestamp
from inflight_settings.limits import Limits

MAX_DECISIONS = 10

MAX_PLACES = 500
"""Most nodes that the model of one service is fetched to before engines need it."""
MAX_LOADING = 8


class Condition(StatusModel):
    """State of the service in one aspect, as in `meta/v1` Condition."""

    type: str = Field(max_length=316, description="Name of the aspect, such as Ready.")
    status: Literal["True", "False", "Unknown"] = Field(
        description="True if the condition holds, False if not, Unknown if the operator cannot tell."
    )
    reason: str = Field(max_length=1024, description="Reason for the status, in one CamelCase word.")
    message: str = Field(
        max_length=32768, description="Explanation of the status, in a sentence that a person can act on."
    )
    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that the condition was set for."
    )
    last_transition_time: Timestamp = Field(description="Time of the last change of the status field.")


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

    until: Timestamp = Field(description="End of the override.")
    before: LimitsPair = Field(description="Limits that return at the end of the override.")


class LimitsStatus(LimitsPair):
    """Limits that engines run with now."""

    revision: int = Field(description="Number of the change that set these limits.")
    pods_in_force: int = Field(description="Number of pods that have confirmed this revision.")
    source: Literal["Capacity", "Tuning", "Override"] | None = Field(
        default=None,
        description="Source of the limits. Capacity: engine.maxNumSeqs and engine.maxNumBatchedTokens, which engines"
        " start with. Tuning: the operator. Override: spec.tuning.override.",
    )
    override: OverrideStatus | None = Field(
        default=None, description="Override in force; tuning is paused until it ends."
    )
    modelled: LimitsPair | None = Field(
        default=None,
        description="Limits that the cost model finds best for the recent requests, within the bounds of tuning.",
    )
    canary: CanaryStatus | None = Field(
        default=None, description="Pod that runs with other limits for a comparison with the rest."
    )
    summary: str | None = Field(default=None, description="Both limits as maxNumSeqs/maxNumBatchedTokens.")

    def model_post_init(self, context: Any, /) -> None:
        object.__setattr__(self, "summary", f"{self.max_num_seqs}/{self.max_num_batched_tokens}")
        self.__pydantic_fields_set__.add("summary")


class CorrectionStatus(StatusModel):
    """A correction of the cost model by measurements."""

    share: float = Field(description="Factor, above 0 and below 1.")
    until: Timestamp = Field(description="End of the correction, unless measurements renew it.")


class BracketStatus(StatusModel):
    """An interval between good and reverted limits: the next attempt is in its middle."""

    good: LimitsPair = Field(description="Limits that performed as well as those before them, or better.")
    bad: LimitsPair = Field(description="Limits that performed worse and were reverted.")
    modelled: LimitsPair = Field(
        description="Limits that the cost model found best then. The interval holds as long as it finds about the same."
    )
    until: Timestamp = Field(description="End of the interval.")


class FenceStatus(StatusModel):
    """A value of a limit that was reverted: steps in this direction end before it."""

    limit: Literal["maxNumSeqs", "maxNumBatchedTokens"] = Field(description="Name of the limit.")
    direction: Literal["Up", "Down"] = Field(description="Direction of the steps.")
    value: int = Field(description="Value that performed worse, or below which no step helps to reach the target.")
    until: Timestamp = Field(description="End of the restriction.")


class TuningStatus(StatusModel):
    """Results of measurements that tuning follows, and that a new operator process continues with."""

    tpot_target: CorrectionStatus | None = Field(
        default=None,
        description="Share of the TPOT target that tuning solves for, because tokens came later than the cost model"
        " says.",
    )
    kv_cache: CorrectionStatus | None = Field(
        default=None,
        description="Share of the usual part of the KV cache that tuning solves for, because requests were preempted.",
    )
    bracket: BracketStatus | None = Field(
        default=None, description="Interval in which tuning searches, because a change was reverted."
    )
    fences: list[FenceStatus] | None = Field(
        default=None,
        max_length=4,
        description="Values that tuning without a cost model does not try again, one for each limit and direction.",
    )


class ObservedStatus(StatusModel):
    """Last reports of the ready engines, combined."""

    running: int = Field(description="Running requests of all engines.")
    asleep: int | None = Field(
        default=None, description="Engines that are asleep, by scaling.sleep. Absent while none is."
    )
    kv_utilization: float | None = Field(
        default=None,
        description="Share of the KV cache in use, 0 to 1, as the mean of the engines that report it.",
    )
    ttft_p95: str | None = Field(
        default=None, description="95th percentile of time to first token over the last window."
    )
    tpot_p95: str | None = Field(
        default=None, description="95th percentile of time per output token over the last window."
    )
    preemptions_per_minute: float = Field(description="Preemptions per minute of all engines.")
    at: Timestamp = Field(description="Time of the measurement.")


class QueueStatus(StatusModel):
    """Requests that wait: at the gateway for a replica, and in engines for a slot."""

    waiting: int = Field(description="Waiting requests, at the gateway and in engines together.")
    at_gateway: int = Field(description="Requests that wait at the gateway for a replica.")
    in_engines: int = Field(description="Requests that wait in engines for a slot.")


class DemandStatus(StatusModel):
    """Demand against capacity, by the step costs that engines measure."""

    requests_per_second: float = Field(description="Requests per second expected when a replica ordered now is ready.")
    replica_requests_per_second: float = Field(
        description="Requests per second that one replica sustains, within the latency targets if it can keep them."
    )
    needed_replicas: float = Field(description="Replicas that the expected demand needs, without a margin.")
    refused_requests_per_second: float | None = Field(
        default=None,
        description="Requests per second that the gateway refused because no replica could start them in time, as the"
        " mean of some minutes; they are part of the demand. Only with gateway.enabled.",
    )


class GatewayStatus(StatusModel):
    """Last reports of the gateway's pods about the service, combined."""

    in_flight: int = Field(description="Requests that the gateway has sent to engines and that have not finished.")


class CostStatus(StatusModel):
    """Cost of the service, by spec.cost."""

    per_hour: str = Field(max_length=32, description="Cost of the existing pods for an hour.")
    per_million_tokens: str | None = Field(
        default=None,
        max_length=32,
        description="Cost of a million prompt and output tokens, over the last minutes.",
    )
    summary: str = Field(max_length=256, description="Both costs in a sentence.")


class EngineStatus(StatusModel):
    """Engine release of the pods."""

    image: str = Field(max_length=512, description="Engine image of the pod template in use.")
    upgrade: Literal["Pending", "Moving", "Stuck"] | None = Field(
        default=None,
        description="State of the upgrade to a newer release. Pending: the service waits for its turn. Moving: its pods"
        " are being replaced. Stuck: their replacement makes no progress, and other services no longer wait for it.",
    )


class RolloutDigest(StatusModel):
    """Version of the model of one rollout."""

    rollout: str = Field(max_length=63, description="Name of its ReplicaSet.")
    digest: str = Field(max_length=81, description="Version of the model that its first ready pod found.")


class ModelStatus(StatusModel):
    """Version of the model. Pods of one rollout serve the same; a rollout takes the newest."""

    digest: str = Field(
        max_length=81,
        description="Version of the model in the newest rollout: commit:HASH of one from Hugging Face, else sha256:HASH"
        " of names, sizes and versions of its files.",
    )
    rollouts: list[RolloutDigest] = Field(
        max_length=8,
        description="The same by rollout, the newest at the end. A rollout without pods leaves the list when another"
        " one is complete.",
    )


class PhasesStatus(StatusModel):
    """Seconds of each phase of a start."""

    scheduled: float | None = Field(default=None, description="From the creation of the pod until it has a node.")
    image: float = Field(description="Until its container runs: image pulls and init containers.")
    weights: float = Field(
        description="That the engine takes to read the model. 0 for engines that do not report it: it is part of"
        " engine then."
    )
    engine: float = Field(description="The rest until the pod is Ready.")
    endpoints: float | None = Field(default=None, description="Until requests are sent to it.")


class StartStatus(PhasesStatus):
    """The start of a pod. A phase that was not observed is absent."""

    node: str = Field(max_length=253, description="Name of its node.")


class StartUpStatus(StatusModel):
    """Lead time of a new replica, learned from the pods that started."""

    seconds: float = Field(description="Seconds from the order of a replica until requests are sent to it, expected.")
    phases: PhasesStatus = Field(description="The same by phase, as medians of the starts.")
    basis: Literal["Node", "Source", "Fleet", "Default"] = Field(
        description="Starts that the expectation is from. Node: of this model and engine on the nodes of the service."
        " Source: of this model and engine on any node. Fleet: of all services. Default: none is known."
    )
    starts: int = Field(description="Number of these starts.")
    summary: str = Field(max_length=256, description="The lead time in a sentence.")
    engine: str = Field(
        max_length=64, description="Identity of the model, the accelerator and the engine options of the recent starts."
    )
    recent: list[StartStatus] = Field(
        max_length=16,
        description="Starts that a new operator process continues with, the newest at the end. Failed starts and starts"
        " with a restarted container are not among them.",
    )


class PrefetchStatus(StatusModel):
    """Fetching the model before engines need it."""

    done: int = Field(description="Number of nodes that have the model; of a claim that all nodes share, 1.")
    total: int = Field(description="Number of nodes that are to have it.")
    bytes: int = Field(description="Bytes of weights on these nodes.")
    total_bytes: int | None = Field(
        default=None, description="Bytes when all have them. Absent before the first one has."
    )
    reason: str = Field(
        max_length=64, description="State in one CamelCase word: Prefetching, Prefetched, or a problem."
    )
    message: str = Field(max_length=1024, description="The same in a sentence that a person can act on.")
    run: str = Field(max_length=64, description="Identity of what is fetched: another spec or version begins anew.")
    digest: str | None = Field(default=None, max_length=81, description="Version of the model that was fetched.")
    served: str | None = Field(
        default=None, max_length=81, description="Version of the newest rollout that the run is for."
    )
    places: list[Annotated[str, Field(max_length=253)]] = Field(
        default_factory=list,
        max_length=MAX_PLACES,
        description="Names of the nodes that have the model, or of the claim.",
    )


class LoadingStatus(StatusModel):
    """Progress of an engine that reads its model for long."""

    pod: str = Field(max_length=253, description="Name of the pod.")
    bytes: int = Field(description="Bytes of the weights that were read.")
    total_bytes: int = Field(description="Bytes of the weights.")
    bytes_per_second: int = Field(description="Bytes per second, the mean since it began.")
    seconds_left: int | None = Field(
        default=None, description="Seconds until all is read, at that rate. Absent before anything is."
    )
    summary: str = Field(max_length=512, description="The progress in a sentence.")


class Decision(StatusModel):
    """A change that the operator decided on, with its reason."""

    time: Timestamp = Field(description="Time of the decision.")
    kind: Literal["Scaling", "Tuning"] = Field(
        description="Scaling: the number of replicas. Tuning: the limits of engines."
    )
    knob: str | None = Field(
        default=None, max_length=64, description="Changed value: replicas, or the name of a limit."
    )
    from_: int | None = Field(
        default=None, validation_alias="from", serialization_alias="from", description="Value before the change."
    )
    to: int | None = Field(default=None, description="Value after the change.")
    code: str | None = Field(default=None, max_length=64, description="Reason in one CamelCase word.")
    numbers: dict[str, float] = Field(
        default_factory=dict,
        description="Measurements and the values that they were compared with: durations in seconds, shares from 0 to"
        " 1.",
    )
    change: str = Field(max_length=256, description="The change in words, such as `replicas 1 -> 2`.")
    reason: str = Field(
        max_length=1024, description="Measurements and the values that they were compared with, in words."
    )
    applied: bool = Field(description="False when tuning.mode is Recommend and nothing was changed.")


class InferenceServiceStatus(StatusModel):
    """Observed state, measurements and decisions, written by the operator."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec that this status is for.")
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        description="Ready, Scheduled, ModelLoaded, Progressing, MetricsAvailable, ScalingActive, TuningActive;"
        " Reconciling while pods change, Stalled while a change cannot continue without intervention;"
        " GatewayReady with gateway.enabled; InferencePool with gateway.inferencePool.enabled; PrefillReady with"
        " disaggregation.mode Auto and Fixed; Idle and Waking with scaling.minReplicas 0; NetworkPolicy while its"
        " clients cannot be enforced.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    url: str | None = Field(
        default=None,
        description="Address of the service inside the cluster. Absent for prefill engines, which have none.",
    )
    replicas: int | None = Field(default=None, description="Number of existing pods.")
    ready_replicas: int | None = Field(default=None, description="Number of pods that accept requests.")
    blocked_replicas: int | None = Field(
        default=None, description="Number of replicas that will not become ready without intervention."
    )
    desired_replicas: int | None = Field(
        default=None, description="Number of replicas that the operator decided on, also in mode External."
    )
    selector: str | None = Field(default=None, description="Label selector of the pods, for the scale subresource.")
    engine: EngineStatus | None = Field(default=None, description="Engine release of the pods.")
    model: ModelStatus | None = Field(
        default=None, description="Version of the model. Absent until a pod has reported one."
    )
    prefetch: PrefetchStatus | None = Field(
        default=None, description="Fetching the model before engines need it. Only with model.prefetch."
    )
    limits: LimitsStatus | None = Field(
        default=None, description="Limits that engines run with now. Absent with engine.type custom."
    )
    tuning: TuningStatus | None = Field(
        default=None, description="Results of measurements that tuning follows. Absent without any."
    )
    queue: QueueStatus | None = Field(
        default=None, description="Requests that wait. Absent while neither engines nor the gateway report."
    )
    observed: ObservedStatus | None = Field(default=None, description="Last reports of the ready engines, combined.")
    demand: DemandStatus | None = Field(
        default=None,
        description="Demand against capacity. Absent until engines have measured the costs of their steps.",
    )
    start_up: StartUpStatus | None = Field(
        default=None, description="Lead time of a new replica. Absent before any start is known."
    )
    loading: list[LoadingStatus] | None = Field(
        default=None,
        max_length=MAX_LOADING,
        description="Engines that read their model for long, those that have most left first. Absent without any.",
    )
    gateway: GatewayStatus | None = Field(
        default=None, description="Last reports of the gateway's pods. Only with gateway.enabled."
    )
    cost: CostStatus | None = Field(default=None, description="Cost of the service. Only with spec.cost.")
    decisions: list[Decision] = Field(
        default_factory=list, max_length=MAX_DECISIONS, description="Last decisions, the newest at the end."
    )

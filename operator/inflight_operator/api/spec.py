"""The spec of an InferenceService. The descriptions here are what `kubectl explain` shows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from inflight_operator.api.base import SpecModel, rule, validations
from inflight_operator.api.template import INT_OR_STRING, PodTemplate

OWN_FLAGS = (
    "host",
    "port",
    "revision",
    "served-model-name",
    "device",
    "dtype",
    "max-model-len",
    "max-num-seqs",
    "max-num-batched-tokens",
    "kv-cache-memory",
    "max-queued-requests",
    "queue-timeout",
    "request-timeout",
    "drain-delay",
    "drain-timeout",
    "limits-file",
)
"""Engine flags the operator sets; extraArgs may not repeat them."""

_DURATION_PATTERN = "^([0-9]+(\\\\.[0-9]+)?(ms|s|m|h))+$"


def _duration(field: str, description: str, default: str) -> str:
    """A field that holds a positive duration; `field` is its name in the sentence said when it is not one."""
    declared: str = Field(
        default=default,
        max_length=16,
        description=description,
        json_schema_extra=validations(
            rule(
                f"self.matches('{_DURATION_PATTERN}') && duration(self) > duration('0s')",
                f"{field} must be a duration above zero, such as 500ms, 2s or 1m30s",
            )
        ),
    )
    return declared


class Model(SpecModel):
    """What is served."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            rule(
                "self.source.startsWith('hf://') || self.revision == 'main'",
                "model.revision is for hf:// sources only: the other sources have no revisions",
            )
        )
    )

    source: str = Field(
        max_length=512,
        description="Where the model comes from: builtin://NAME (in the engine image, such as builtin://smollm2),"
        " hf://ORGANIZATION/NAME (Hugging Face), or pvc://CLAIM/FOLDER (a folder with a Hugging Face model on a"
        " PersistentVolumeClaim of this namespace, mounted read-only).",
        json_schema_extra=validations(
            rule(
                "self.startsWith('builtin://') || self.startsWith('hf://') || self.startsWith('pvc://')",
                "model.source must begin with builtin://, hf:// or pvc://, such as builtin://smollm2",
            ),
            rule(
                "!self.startsWith('builtin://') || self.matches('^builtin://[a-zA-Z0-9][-_.a-zA-Z0-9]*$')",
                "model.source with builtin:// must name a model in the engine image, such as builtin://smollm2",
            ),
            rule(
                "!self.startsWith('hf://') || self.matches('^hf://[-_.a-zA-Z0-9]+(/[-_.a-zA-Z0-9]+)?$')",
                "model.source with hf:// must be hf://ORGANIZATION/NAME, such as hf://Qwen/Qwen3-8B",
            ),
            rule(
                "!self.startsWith('pvc://') || (self.matches('^pvc://[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[^/].*$')"
                " && !self.matches('(^|/)[.][.](/|$)'))",
                "model.source with pvc:// must be pvc://CLAIM/FOLDER with a folder inside the claim,"
                " such as pvc://models/qwen3-8b",
            ),
        ),
    )
    revision: str = Field(
        default="main", min_length=1, max_length=255, description="Branch, tag or commit of an hf:// model."
    )
    served_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        description="The name clients put in `model`. Default: the name of the InferenceService.",
    )


class KVCache(SpecModel):
    """Memory for keys and values of running requests."""

    memory: Annotated[str | int, Field(json_schema_extra=INT_OR_STRING)] | None = Field(
        default=None,
        description="Size of the KV cache, such as 4Gi. Default: a share of what the device has left after"
        " the weights.",
        json_schema_extra=validations(
            rule(
                "type(self) == int ? self > 0 : (isQuantity(self) && quantity(self).isGreaterThan(quantity('0')))",
                "engine.kvCache.memory must be a quantity above zero, such as 4Gi",
            )
        ),
    )


class Engine(SpecModel):
    """How each engine is started. A change here rolls out new pods."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="Number type of weights and KV cache; auto takes bfloat16 where the device computes in it,"
        " else float32.",
    )
    max_model_len: int | None = Field(
        default=None, ge=1, le=16777216, description="Longest prompt plus output, in tokens. Default: the model's own."
    )
    max_num_seqs: int = Field(
        default=256,
        ge=1,
        le=65536,
        description="Capacity: most requests an engine runs at once. The limit in force moves below it while it runs.",
    )
    max_num_batched_tokens: int = Field(
        default=8192,
        ge=1,
        le=1048576,
        description="Capacity: most tokens an engine computes in one step. The limit in force moves below it.",
    )
    kv_cache: KVCache = Field(default_factory=KVCache, description="Memory for keys and values of running requests.")
    max_queued_requests: int = Field(
        default=512,
        ge=1,
        le=1000000,
        description="Requests that may wait in an engine; more are answered 503 with Retry-After.",
    )
    queue_timeout: str = _duration(
        "engine.queueTimeout", "How long a request may wait before it is answered 504.", "60s"
    )
    request_timeout: str = _duration(
        "engine.requestTimeout", "How long a request may take in all before it is ended with 504.", "600s"
    )
    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="Engine image. Default: the one the operator was installed with.",
    )
    extra_args: list[Annotated[str, Field(min_length=1, max_length=1024)]] = Field(
        default_factory=list,
        max_length=64,
        description="Further flags for `inflight-engine serve`, one argument an entry, such as --block-size=32.",
        json_schema_extra=validations(
            rule(
                f"!self.exists(a, a.matches('^--({'|'.join(OWN_FLAGS)})(=.*)?$'))",
                "engine.extraArgs cannot repeat a flag that the operator sets"
                " (" + ", ".join(f"--{flag}" for flag in OWN_FLAGS) + "): use the spec's own field",
            )
        ),
    )


class Accelerator(SpecModel):
    """The accelerator of each pod."""

    count: int = Field(
        default=1,
        description="Accelerators for each pod: 1, or 0 to run on CPU.",
        json_schema_extra=validations(
            rule(
                "self == 0 || self == 1", "accelerator.count must be 1, or 0 for CPU: a replica runs on one accelerator"
            )
        ),
    )
    resource: str = Field(
        default="nvidia.com/gpu",
        min_length=1,
        max_length=317,
        description="Name of the node resource that stands for one accelerator.",
        json_schema_extra=validations(
            rule("self.matches('^[^/]+/[^/]+$')", "accelerator.resource must be a resource name such as nvidia.com/gpu")
        ),
    )


class SLO(SpecModel):
    """The latency the service should keep, which tuning and scaling aim at."""

    ttft_p95: str = _duration("slo.ttftP95", "Time to first token that 95% of requests should stay under.", "500ms")
    tpot_p95: str = _duration(
        "slo.tpotP95", "Time per output token after the first that 95% of requests should stay under.", "50ms"
    )


class Targets(SpecModel):
    """What one replica should carry; replicas are added when a target is passed."""

    waiting_requests: int = Field(default=4, ge=1, le=1000000, description="Waiting requests for each replica.")
    kv_utilization: float = Field(
        default=0.8,
        description="Share of the KV cache in use, above 0 and at most 1.",
        json_schema_extra=validations(
            rule(
                "self > 0.0 && self <= 1.0", "scaling.targets.kvUtilization must be above 0 and at most 1, such as 0.8"
            )
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
        default=0, ge=0, le=3600, description="Go only as high as every recommendation within this window did."
    )
    select_policy: Literal["Max", "Min", "Disabled"] = Field(
        default="Max", description="Which policy counts: the one that allows most, least, or no change at all."
    )
    policies: list[ScalingPolicy] = Field(
        default=[
            ScalingPolicy(type="Percent", value=100, period_seconds=15),
            ScalingPolicy(type="Pods", value=4, period_seconds=15),
        ],
        min_length=1,
        max_length=16,
        description="Bounds on the change.",
    )


class ScaleDownRules(SpecModel):
    """How replicas are removed. Terms as in autoscaling/v2."""

    stabilization_window_seconds: int = Field(
        default=120, ge=0, le=3600, description="Go only as low as every recommendation within this window did."
    )
    select_policy: Literal["Max", "Min", "Disabled"] = Field(
        default="Max", description="Which policy counts: the one that allows most, least, or no change at all."
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
        description="Operator: the operator decides from queue, KV use and latency. External: spec.replicas counts,"
        " which `kubectl scale`, an HPA or KEDA write through the scale subresource.",
    )
    min_replicas: int = Field(default=1, ge=1, le=10000, description="Fewest replicas in mode Operator.")
    max_replicas: int = Field(default=8, ge=1, le=10000, description="Most replicas in mode Operator.")
    targets: Targets = Field(default_factory=Targets, description="What one replica should carry.")
    behavior: Behavior = Field(default_factory=Behavior, description="How fast replicas change.")


class SeqsBounds(SpecModel):
    """Bounds of max_num_seqs while engines run."""

    min: int = Field(default=1, ge=1, le=65536, description="Lowest value tuning may set.")
    max: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Highest value tuning may set. Default: the capacity, engine.maxNumSeqs.",
    )


class TokensBounds(SpecModel):
    """Bounds of max_num_batched_tokens while engines run."""

    min: int | None = Field(
        default=None,
        ge=1,
        le=1048576,
        description="Lowest value tuning may set. Default: 64, or the highest value where that is lower.",
    )
    max: int | None = Field(
        default=None,
        ge=1,
        le=1048576,
        description="Highest value tuning may set. Default: the capacity, engine.maxNumBatchedTokens.",
    )


class Tuning(SpecModel):
    """How the limits of running engines are kept right."""

    mode: Literal["Auto", "Recommend", "Off"] = Field(
        default="Auto",
        description="Auto: limits are changed on running engines. Recommend: the status says what would be changed."
        " Off (in quotes, or YAML reads it as false): engines run at their capacities.",
    )
    max_num_seqs: SeqsBounds = Field(default_factory=SeqsBounds, description="Bounds of max_num_seqs.")
    max_num_batched_tokens: TokensBounds = Field(
        default_factory=TokensBounds, description="Bounds of max_num_batched_tokens."
    )


class Rollout(SpecModel):
    """How pods are replaced."""

    strategy: Literal["SurgeFirst", "ReleaseFirst"] = Field(
        default="SurgeFirst",
        description="SurgeFirst: a new pod is Ready before an old one goes. ReleaseFirst: an old pod goes first, one at"
        " a time, where no accelerator is free for a surplus pod.",
    )
    drain_timeout: str = _duration(
        "rollout.drainTimeout", "How long a pod that goes may finish the requests it has.", "120s"
    )


def _tuning_rules(knob: str) -> list[dict[str, Any]]:
    """min <= max <= capacity for one knob, where what is not given holds."""
    capacity, bounds = f"self.engine.{knob}", f"self.tuning.?{knob}"
    return [
        rule(
            f"{bounds}.?max.orValue(0) <= {capacity}",
            f"tuning.{knob}.max must not exceed engine.{knob}, the capacity an engine starts with",
        ),
        rule(
            f"{bounds}.?min.orValue(0) <= {bounds}.?max.orValue({capacity})",
            f"tuning.{knob}.min must not exceed tuning.{knob}.max (default: engine.{knob})",
        ),
    ]


class InferenceServiceSpec(SpecModel):
    """What is wanted: a model, served by as many engines as the traffic needs."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            rule(
                "self.engine.dtype != 'float16' || self.accelerator.count > 0",
                "engine.dtype float16 needs an accelerator: with accelerator.count 0 use auto, float32 or bfloat16",
                fieldPath=".engine.dtype",
            ),
            rule(
                "self.scaling.maxReplicas >= self.scaling.minReplicas",
                "scaling.maxReplicas must be at least scaling.minReplicas",
                fieldPath=".scaling.maxReplicas",
            ),
            rule(
                "self.scaling.mode == 'External' || (oldSelf.hasValue() ?"
                " oldSelf.value().replicas == self.replicas : self.replicas == 1)",
                "replicas is set by hand or by an autoscaler only when scaling.mode is External; in mode Operator set"
                " scaling.minReplicas and scaling.maxReplicas",
                fieldPath=".replicas",
                optionalOldSelf=True,
            ),
            *_tuning_rules("maxNumSeqs"),
            *_tuning_rules("maxNumBatchedTokens"),
        )
    )

    model: Model = Field(description="What is served.")
    replicas: int = Field(
        default=1,
        ge=0,
        le=10000,
        description="Replicas while scaling.mode is External; 0 stops all pods. In mode Operator it has no meaning and"
        " cannot be changed; the operator's own decision is in status.desiredReplicas.",
    )
    engine: Engine = Field(default_factory=Engine, description="How each engine is started.")
    accelerator: Accelerator = Field(default_factory=Accelerator, description="The accelerator of each pod.")
    slo: SLO = Field(default_factory=SLO, description="The latency the service should keep.")
    scaling: Scaling = Field(default_factory=Scaling, description="How many replicas there are.")
    tuning: Tuning = Field(default_factory=Tuning, description="How the limits of running engines are kept right.")
    rollout: Rollout = Field(default_factory=Rollout, description="How pods are replaced.")
    template: PodTemplate = Field(
        default_factory=PodTemplate, description="Parts of the engine's pods, merged last over what the operator makes."
    )

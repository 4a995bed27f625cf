"""The spec of an InferenceService. The descriptions here are what `kubectl explain` shows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from inflight_base.manifest import defaults
from inflight_base.manifest.names import CLASS_PATTERN, DEFAULT_CLASS
from inflight_operator.api.base import SpecModel, Timestamp, rule, validation, validations
from inflight_operator.api.disaggregation import Disaggregation, disaggregation_rules
from inflight_operator.api.duration import DURATION_PATTERN, Duration, duration_field
from inflight_operator.api.engine.fields import OWN_FLAGS, Accelerator, Engine, Model
from inflight_operator.api.engine.rules import engine_rules
from inflight_operator.api.gateway import Gateway
from inflight_operator.api.pods.cost import Cost
from inflight_operator.api.pods.network import NETWORK_RULE, NetworkPolicy
from inflight_operator.api.pods.rollout import ROLLOUT_RULES, Rollout
from inflight_operator.api.pods.scheduling import BOUNDS
from inflight_operator.api.pods.template import PodTemplate
from inflight_operator.api.scaling import Scaling
from inflight_settings.limits import HIGHEST_LIMITS
from inflight_settings.scheduling import SchedulingSettings
from inflight_settings.setting import settings_of


class SLO(SpecModel):
    """Latency targets of the service, which tuning and scaling aim at."""

    ttft_p95: Duration = duration_field(
        "slo.ttftP95",
        "Time to first token that 95% of requests should stay under. Engines order waiting requests by it (policy"
        " deadline), so a change rolls out new pods, unless engine.scheduling.policy is another policy.",
        defaults.TTFT_P95,
        BOUNDS,
    )
    ttft_per_thousand_tokens: Duration = duration_field(
        "slo.ttftPerThousandTokens",
        "Time that each 1,000 tokens of a prompt add to its TTFT target, which is that of its class or ttftP95: with"
        " ttftP95 500ms and 60ms here, the first token of a prompt of 100,000 tokens is due after 6.5s. A change rolls"
        " out new pods if engines order requests by a target or count those that keep the target of their class.",
        "0ms",
        ("0s", f"{settings_of(SchedulingSettings)['ttft_per_1k_tokens'].le:g}s"),
    )
    tpot_p95: Duration = duration_field(
        "slo.tpotP95",
        "Time per output token after the first that 95% of requests should stay under.",
        defaults.TPOT_P95,
    )


Seqs = Annotated[int, Field(ge=1, le=HIGHEST_LIMITS.max_num_seqs)]
Tokens = Annotated[int, Field(ge=1, le=HIGHEST_LIMITS.max_num_batched_tokens)]


class SeqsBounds(SpecModel):
    """Bounds of max_num_seqs while engines run."""

    min: Seqs = Field(default=1, description="Lowest value that tuning may set.")
    max: Seqs | None = Field(
        default=None,
        description="Highest value that tuning may set. Default: the capacity, engine.maxNumSeqs.",
    )


class TokensBounds(SpecModel):
    """Bounds of max_num_batched_tokens while engines run."""

    min: Tokens | None = Field(
        default=None,
        description="Lowest value that tuning may set. Default: 64, or the highest value if that is lower.",
    )
    max: Tokens | None = Field(
        default=None,
        description="Highest value that tuning may set. Default: the capacity, engine.maxNumBatchedTokens.",
    )


class Override(SpecModel):
    """Limits set by hand for a limited time. Tuning is paused while they are in force. At their end, the previous
    limits return."""

    model_config = ConfigDict(
        json_schema_extra=validation(
            "has(self.maxNumSeqs) || has(self.maxNumBatchedTokens)",
            "tuning.override needs a limit to set: maxNumSeqs, maxNumBatchedTokens, or both",
        )
    )

    max_num_seqs: Seqs | None = Field(
        default=None,
        description="max_num_seqs while the override is in force. Unset: the value that was in force before.",
    )
    max_num_batched_tokens: Tokens | None = Field(
        default=None,
        description="max_num_batched_tokens while the override is in force. Unset: the value that was in force before.",
    )
    until: Timestamp = Field(
        description="End of the override, such as 2030-01-31T12:00:00Z. An override that has ended has no effect.",
        json_schema_extra={
            "maxLength": 40,
            **validation(
                "self >= timestamp('2000-01-01T00:00:00Z') && self < timestamp('9000-01-01T00:00:00Z')",
                "tuning.override.until must be a time from 2000 to 8999",
            ),
        },
    )


class Tuning(SpecModel):
    """Tuning of the limits of running engines."""

    mode: Literal["Auto", "Recommend", "Off"] = Field(
        default="Auto",
        description="Auto: the operator changes the limits of running engines; engines of type vllm without the plugin"
        " get recommendations, and engines of type custom have no such limits. Recommend: the status shows the changes"
        " that it would make. Off (in quotes, or YAML reads it as false): engines run at their capacities.",
    )
    max_num_seqs: SeqsBounds = Field(default_factory=SeqsBounds, description="Bounds of max_num_seqs.")
    max_num_batched_tokens: TokensBounds = Field(
        default_factory=TokensBounds, description="Bounds of max_num_batched_tokens."
    )
    override: Override | None = Field(
        default=None,
        description="Limits set by hand for a limited time, in every mode. They may be outside the bounds of tuning,"
        " and must not exceed the engine's capacity.",
    )


_SWAP = "self.engine.kvCache.swap"
_DISK = "self.engine.kvCache.disk"
_VOLUME = f"{_DISK}.volume"
_HAS_SWAP = (
    f"(type({_SWAP}) == int ? {_SWAP} > 0 : (isQuantity({_SWAP}) && quantity({_SWAP}).isGreaterThan(quantity('0'))))"
)

_CLASS = f"(has({{0}}.className) ? {{0}}.className : '{DEFAULT_CLASS}')"


def _tuning_rules(knob: str) -> list[dict[str, Any]]:
    """min <= max <= capacity for one knob, where unset limits never bind."""
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
        rule(
            f"self.tuning.?override.?{knob}.orValue(0) <= {capacity}",
            f"tuning.override.{knob} must not exceed engine.{knob}, the capacity an engine starts with;"
            " `kubectl inflight limits SERVICE --clear` removes an override, also one that has ended",
        ),
    ]


class InferenceServiceSpec(SpecModel):
    """Desired state: a model, served by as many engines as the traffic needs."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            rule(
                "self.engine.dtype != 'float16' || self.accelerator.count > 0",
                "engine.dtype float16 needs an accelerator: with accelerator.count 0 use auto, float32 or bfloat16",
                fieldPath=".engine.dtype",
            ),
            rule(
                "self.engine.quantization == 'none' || self.accelerator.count == 0",
                "engine.quantization int8 and int4 run on CPU: set accelerator.count 0, or leave it none",
                fieldPath=".engine.quantization",
            ),
            rule(
                "self.engine.kvCache.dtype == 'auto' || self.accelerator.count > 0",
                "engine.kvCache.dtype fp8 needs an accelerator: with accelerator.count 0 leave it auto",
                fieldPath=".engine.kvCache.dtype",
            ),
            rule(
                "self.engine.kvCache.memoryFraction == 0.9 || self.accelerator.count > 0",
                "engine.kvCache.memoryFraction is a share of an accelerator's memory: with accelerator.count 0 set"
                " engine.kvCache.memory instead",
                fieldPath=".engine.kvCache.memoryFraction",
            ),
            rule(
                "self.scaling.maxReplicas >= self.scaling.minReplicas",
                "scaling.maxReplicas must be at least scaling.minReplicas",
                fieldPath=".scaling.maxReplicas",
            ),
            rule(
                "self.scaling.mode != 'Operator' || self.scaling.minReplicas > 0 || self.gateway.enabled",
                "scaling.minReplicas 0 needs the gateway, which holds requests while no replica runs: set"
                " gateway.enabled true, or scaling.minReplicas to 1 or more",
                fieldPath=".scaling.minReplicas",
            ),
            rule(
                "!has(self.scaling.sleep) || self.accelerator.count == 0",
                "scaling.sleep is for engines on CPUs: with accelerator.count above 0, scaling.minReplicas 0 frees"
                " accelerators",
                fieldPath=".scaling.sleep",
            ),
            rule(
                "!has(self.scaling.sleep) || self.scaling.mode != 'Operator' || self.scaling.minReplicas > 0"
                f" || !self.scaling.sleep.after.matches('{DURATION_PATTERN}')"
                f" || !self.scaling.idleTimeout.matches('{DURATION_PATTERN}')"
                " || duration(self.scaling.sleep.after) < duration(self.scaling.idleTimeout)",
                "scaling.sleep.after must be below scaling.idleTimeout, after which a service with minReplicas 0 has no"
                " replica that could sleep",
                fieldPath=".scaling.sleep",
            ),
            rule(
                "self.gateway.enabled || !has(self.gateway.auth)",
                "gateway.auth needs gateway.enabled true: without the gateway, API keys are not checked",
                fieldPath=".gateway.auth",
            ),
            rule(
                "self.gateway.enabled || !self.gateway.inferencePool.enabled",
                "gateway.inferencePool.enabled needs gateway.enabled true: the gateway's picker chooses the engines for"
                " other gateways",
                fieldPath=".gateway.inferencePool.enabled",
            ),
            rule(
                "!has(self.gateway.auth) || !self.engine.?grpc.orValue(false)",
                "engine.grpc and gateway.auth exclude each other: with gateway.auth engines take only requests that the"
                " gateway signed, and it forwards no gRPC",
                fieldPath=".engine.grpc",
            ),
            rule(
                "!has(self.gateway.auth) || !has(self.engine.extraArgs)"
                " || !self.engine.extraArgs.exists(a, a.matches('^--api[-_]key(=.*)?$'))",
                "engine.extraArgs --api-key and gateway.auth exclude each other: the gateway checks API keys, and"
                " removes them from requests",
                fieldPath=".engine.extraArgs",
            ),
            rule(
                "!self.gateway.enabled || !has(self.engine.extraArgs)"
                " || !self.engine.extraArgs.exists(a, a.matches('^--trust-tenant-header(=.*)?$'))",
                "engine.extraArgs --trust-tenant-header and gateway.enabled exclude each other: engines behind the"
                " gateway believe the tenant that it signs",
                fieldPath=".engine.extraArgs",
            ),
            rule(
                "self.scaling.mode == 'External' || !has(self.replicas)"
                " || oldSelf.?replicas.orValue(-1) == self.replicas",
                "replicas is set by hand or by an autoscaler only when scaling.mode is External; in mode Operator set"
                " scaling.minReplicas and scaling.maxReplicas",
                fieldPath=".replicas",
                optionalOldSelf=True,
            ),
            rule(
                f"self.engine.scheduling.preemption != 'swap' || {_HAS_SWAP}",
                "engine.scheduling.preemption swap needs host memory: set engine.kvCache.swap, such as 4Gi",
                fieldPath=".engine.scheduling.preemption",
            ),
            rule(
                f"!has({_DISK}) || ({_HAS_SWAP} && self.engine.kvCache.prefixCaching"
                " && self.engine.scheduling.preemption != 'recompute')",
                "engine.kvCache.disk is behind host memory: it needs engine.kvCache.swap, prefixCaching, and another"
                " scheduling.preemption than recompute",
                fieldPath=".engine.kvCache.disk",
            ),
            rule(
                f"!has({_DISK}) || self.accelerator.count <= 1",
                "engine.kvCache.disk is for engines of at most one accelerator",
                fieldPath=".engine.kvCache.disk",
            ),
            rule(
                f"!has({_DISK}) || !has({_VOLUME}) || (has(self.template.volumes)"
                f" && self.template.volumes.exists(v, v.name == {_VOLUME}))",
                "engine.kvCache.disk.volume must be the name of a volume of template.volumes",
                fieldPath=".engine.kvCache.disk",
            ),
            rule(
                "!has(self.engine.scheduling.classes) || self.engine.scheduling.classes.all(c,"
                " c.?maxQueuedRequests.orValue(0) <= self.engine.maxQueuedRequests)",
                "engine.scheduling.classes.maxQueuedRequests must not exceed engine.maxQueuedRequests, which bounds all"
                " classes together",
                fieldPath=".engine.scheduling.classes",
            ),
            rule(
                "self.engine.scheduling.?policy.orValue('') != 'deadline' || has(self.slo)"
                " || (has(self.engine.scheduling.classes) && self.engine.scheduling.classes.exists(c,"
                " has(c.slo) && has(c.slo.ttftP95)))",
                "engine.scheduling.policy deadline needs a target: set slo.ttftP95, or slo.ttftP95 of a class",
                fieldPath=".engine.scheduling.policy",
            ),
            rule(
                f"{_CLASS.format('self')} == {_CLASS.format('oldSelf')}",
                "spec.className is immutable, because engines trust only the keys of the installation that created"
                " them: create a service of another name with the other class, then delete this one",
                fieldPath=".className",
            ),
            *_tuning_rules("maxNumSeqs"),
            *_tuning_rules("maxNumBatchedTokens"),
            *ROLLOUT_RULES,
            NETWORK_RULE,
            *disaggregation_rules(_HAS_SWAP),
            *engine_rules({"model": Model, "engine": Engine, "scaling": Scaling}, OWN_FLAGS),
        )
    )

    class_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        pattern=CLASS_PATTERN,
        description="Class of the installation that serves it, as operator.className of its chart: operators and"
        f" gateways of other classes ignore the service. Immutable. Default: {DEFAULT_CLASS}.",
    )
    queue_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        pattern="^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$",
        description="LocalQueue of Kueue, in the service's namespace, that admits the pods. Kueue needs its integration"
        " of pods. Default: none.",
    )
    model: Model = Field(description="The model that the service serves.")
    replicas: int | None = Field(
        default=None,
        ge=0,
        le=10000,
        description="Number of replicas while scaling.mode is External; 0 stops all pods. Unset: the number stays as it"
        " is. In mode Operator it has no effect and can only be removed; the operator's own decision is in"
        " status.desiredReplicas.",
    )
    engine: Engine = Field(default_factory=Engine, description="Start options of each engine.")
    accelerator: Accelerator = Field(default_factory=Accelerator, description="The accelerator of each pod.")
    slo: SLO | None = Field(
        default=None,
        description="Latency targets of the service. Default: 500ms and 50ms for tuning and scaling; engines then have"
        " no target to order requests by.",
    )
    scaling: Scaling = Field(default_factory=Scaling, description="Scaling of replicas.")
    gateway: Gateway = Field(default_factory=Gateway, description="The gateway in front of the engines.")
    disaggregation: Disaggregation = Field(
        default_factory=Disaggregation, description="Prompts and answers on separate engines."
    )
    cost: Cost | None = Field(default=None, description="Price of a replica.")
    tuning: Tuning = Field(default_factory=Tuning, description="Tuning of the limits of running engines.")
    rollout: Rollout = Field(default_factory=Rollout, description="Replacement of pods.")
    network_policy: NetworkPolicy | None = Field(default=None, description="Clients that may connect to the pods.")
    template: PodTemplate = Field(
        default_factory=PodTemplate, description="Parts of the engine's pods, merged last over the operator's own."
    )

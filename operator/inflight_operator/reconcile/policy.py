"""Conversion of the spec for the decisions: units and defaults resolved, once for each version of the object."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from inflight_base.manifest import defaults
from inflight_base.manifest.engines import INFLIGHT, EngineType
from inflight_base.manifest.units import parse_duration, parse_quantity
from inflight_operator.api.pods.rollout import Rollout
from inflight_operator.api.resolve import capacity, engine_type, tuning_bounds
from inflight_operator.api.scaling import ScaleDownRules, ScaleUpRules
from inflight_operator.api.spec import SLO, InferenceServiceSpec, Tuning
from inflight_operator.api.types import InferenceService
from inflight_operator.decide.override import Override
from inflight_operator.decide.prefetch import Wanted
from inflight_operator.decide.replicas.behavior import Behavior, ScalingPolicy, ScalingRules
from inflight_operator.decide.replicas.scaling import ScalingBounds, ScalingTargets
from inflight_operator.decide.status.pod_problems import ServiceFacts
from inflight_operator.decide.tuning.tune import TuningMode
from inflight_operator.decide.tuning.types import Slo
from inflight_operator.render.deployment import digest, template_inputs
from inflight_operator.render.engine_flags import ttft_target
from inflight_operator.render.engines.inflight import model_cache
from inflight_operator.render.inference_pool import has_inference_pool
from inflight_operator.render.plan import Settings
from inflight_operator.render.pod import pod_template
from inflight_operator.render.prefetch import is_cached, prefetch_template
from inflight_operator.render.service import behind_gateway
from inflight_settings.limits import Limits, LimitsBounds


@dataclass(frozen=True, slots=True)
class Policy:
    """Inputs of the decisions from the spec.

    Attributes:
        external: whether `spec.replicas` counts (`scaling.mode: External`).
        gateway: whether requests of clients go through the gateway.
        inference_pool: whether there is an InferencePool for other gateways.
        idle_timeout: seconds without a request after which the service scales to zero; None if it never does.
        replicas: `spec.replicas`.
        targets, behavior, bounds: settings of scaling.
        fallback_targets: used while there is no capacity model; the TTFT target without the part per prompt token.
        price: price of a pod for an hour; None if unknown.
        currency: currency of the price; empty if unknown.
        slo: latency targets in seconds.
        ordered: engines serve first what can still keep its TTFT target.
        engine_type: facts about the type of the engines.
        tuning: mode of tuning: at most Recommend where limits of running engines cannot change, Off where the operator
            does not know them.
        override: limits set by hand; None without any. May have expired.
        tuning_bounds: bounds of the limits.
        capacity: limits that engines are started with.
        facts: names used in sentences about pods.
        startup_limit: seconds that a pod may take to start.
        release_after: seconds without progress after which a rollout without room for additional pods removes old pods
            first; None if it never does.
        engine: identity of the measured engine: a change invalidates earlier measurements.
        template_inputs: identity of the parts of the spec, as asked for, that the pod template depends on.
        prefetch: what to fetch before engines need it; None: nothing.
        plugin_missing: vLLM runs without the plugin only because the operator knows no image that has it.
        prefill_of: name of the service that the engines compute prompts for; empty for all but a prefill set.
    """

    external: bool
    gateway: bool
    inference_pool: bool
    idle_timeout: float | None
    replicas: int | None
    targets: ScalingTargets
    fallback_targets: ScalingTargets
    behavior: Behavior
    bounds: ScalingBounds
    price: float | None
    currency: str
    slo: Slo
    ordered: bool
    engine_type: EngineType
    tuning: TuningMode
    override: Override | None
    tuning_bounds: LimitsBounds
    capacity: Limits
    facts: ServiceFacts
    startup_limit: float
    release_after: float | None
    engine: str
    template_inputs: str
    plugin_missing: bool
    prefetch: Wanted | None = None
    prefill_of: str = ""


def servable(service: InferenceService, settings: Settings) -> InferenceService:
    """Returns the service, without the plugin for vLLM where the operator knows no image that has it: pods that ask for
    it could not start."""
    spec = service.spec
    if settings.plugin_image or not engine_type(spec).plugin:
        return service
    engine = spec.engine.model_copy(update={"plugin": False})
    tuning = spec.tuning.model_copy(update={"override": None})
    return service.model_copy(update={"spec": spec.model_copy(update={"engine": engine, "tuning": tuning})})


def policy_of(asked: InferenceService, settings: Settings, prefill_of: str = "") -> Policy:
    """Returns the policy of a service's spec, of which `servable` is in effect. Args: prefill_of: as in `Policy`."""
    service = servable(asked, settings)
    spec = service.spec
    facts = engine_type(spec)
    external = spec.scaling.mode == "External"
    gateway = behind_gateway(service, settings) and not prefill_of
    sleeps = gateway and not external and spec.scaling.min_replicas == 0
    wanted, slo = spec.scaling.targets, spec.slo or SLO()
    ttft, tpot = parse_duration(slo.ttft_p95), parse_duration(slo.tpot_p95)
    targets = ScalingTargets(wanted.waiting_requests, wanted.kv_utilization, wanted.concurrency, tpot_p95=tpot)
    return Policy(
        external=external,
        gateway=gateway,
        inference_pool=has_inference_pool(service, settings),
        idle_timeout=parse_duration(spec.scaling.idle_timeout) if sleeps else None,
        replicas=spec.replicas,
        targets=targets,
        fallback_targets=replace(
            targets,
            waiting_requests=targets.waiting_requests or defaults.FALLBACK_WAITING_REQUESTS,
            kv_utilization=targets.kv_utilization or defaults.FALLBACK_KV_UTILIZATION,
            ttft_p95=ttft,
        ),
        behavior=_behavior(spec, external=external),
        # A service that is awake has a replica: `decide.replicas.sleeping` removes the last one.
        bounds=ScalingBounds(max(1, spec.scaling.min_replicas), spec.scaling.max_replicas),
        price=None if spec.cost is None else float(parse_quantity(spec.cost.price_per_replica_hour)),
        currency="" if spec.cost is None else spec.cost.currency or "",
        slo=Slo(ttft, tpot, parse_duration(slo.ttft_per_thousand_tokens) / 1000),
        ordered=ttft_target(spec) is not None,
        engine_type=facts,
        tuning=_mode(spec, facts),
        override=_override(spec.tuning),
        tuning_bounds=tuning_bounds(spec),
        capacity=capacity(spec),
        facts=_facts(service, settings),
        startup_limit=parse_duration(spec.rollout.startup_timeout),
        release_after=_release_after(spec.rollout),
        engine=digest(_engine(spec)),
        template_inputs=template_inputs(asked.spec),
        plugin_missing=service is not asked,
        prefetch=_prefetch(service, settings),
        prefill_of=prefill_of,
    )


def _prefetch(service: InferenceService, settings: Settings) -> Wanted | None:
    model = service.spec.model
    if model.prefetch is None or service.spec.engine.type != INFLIGHT:
        return None
    source = model.model_dump(mode="json", include={"source", "revision", "path", "endpoint"})
    cache, template = model_cache(service, settings), digest(prefetch_template(service, settings))
    folder = [] if cache is None else [cache.claim, cache.host_path]
    return Wanted(digest([source, folder]), template, is_cached(service, settings))


def _mode(spec: InferenceServiceSpec, facts: EngineType) -> TuningMode:
    mode = TuningMode(spec.tuning.mode)
    if not facts.limits:
        return TuningMode.OFF
    return TuningMode.RECOMMEND if mode is TuningMode.AUTO and not facts.live_limits else mode


def _override(tuning: Tuning) -> Override | None:
    spec = tuning.override
    return None if spec is None else Override(spec.max_num_seqs, spec.max_num_batched_tokens, until=spec.until)


def _engine(spec: InferenceServiceSpec) -> list[Any]:
    """Returns the inputs that determine the duration of a step. Scheduling, queueing and limits are excluded: tuned
    limits, cost models and fences stay valid when those change."""
    model, engine = spec.model, spec.engine
    return [
        model.source,
        model.revision,
        spec.accelerator.model_dump(mode="json"),
        engine.image,
        engine.dtype,
        engine.quantization,
        engine.kv_cache.dtype,
        engine.extra_args,
        *([] if engine.type == INFLIGHT else [engine.type, engine.plugin]),
        *([] if engine.custom is None else [engine.custom.command, engine.custom.args]),
    ]


def _release_after(rollout: Rollout) -> float | None:
    if rollout.release_after is None or rollout.strategy != "SurgeFirst":
        return None
    return parse_duration(rollout.release_after)


def _behavior(spec: InferenceServiceSpec, *, external: bool) -> Behavior:
    """Returns the rules for the rate of scaling. In mode External there are none: the external scaler has its own
    rules, and the operator reports the recommendation of the targets."""
    if external:
        return Behavior(ScalingRules(0.0), ScalingRules(0.0))
    return Behavior(_rules(spec.scaling.behavior.scale_up), _rules(spec.scaling.behavior.scale_down))


def _rules(rules: ScaleUpRules | ScaleDownRules) -> ScalingRules:
    policies = tuple(ScalingPolicy(one.type, one.value, one.period_seconds) for one in rules.policies)
    return ScalingRules(rules.stabilization_window_seconds, policies, rules.select_policy)


def _facts(service: InferenceService, settings: Settings) -> ServiceFacts:
    engine = pod_template(service, settings)["spec"]["containers"][0]
    accelerator, cache = service.spec.accelerator, model_cache(service, settings)
    return ServiceFacts(
        service.spec.model.source,
        accelerator.resource if accelerator.count else "",
        str(engine["resources"].get("limits", {}).get("memory", "")),
        "" if cache is None else cache.claim,
        service.spec.model.credentials_secret or "",
    )

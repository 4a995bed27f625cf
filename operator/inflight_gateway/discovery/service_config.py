"""A `ServiceConfig` from an InferenceService, with the CRD's defaults for unset fields."""

from __future__ import annotations

from typing import Any

from inflight_base.manifest.engines import engine_type
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.lenient import Part
from inflight_base.manifest.names import KV_EVENTS_PORT, KV_REPLAY_PORT
from inflight_gateway.types import (
    DEFAULT_TTFT_S,
    Apart,
    HoldBounds,
    KvEventPorts,
    RateLimits,
    ScoreWeights,
    ServiceClass,
    ServiceConfig,
    TenantConfig,
)


class ServiceConfigError(ValueError):
    """The gateway must not serve this service; the message names the invalid field."""


def read_service(manifest: dict[str, Any], *, leaving: bool = False) -> tuple[ServiceConfig | None, tuple[str, ...]]:
    """Reads the gateway's configuration from an InferenceService, as the API server returns it.

    Args:
        leaving: clients of the service may still connect to the gateway, although it is no longer behind it.

    Returns:
        The configuration, None where the service is not behind the gateway (`spec.gateway.enabled`); and a sentence for
        each unreadable field, whose default then applies.

    Raises:
        ServiceConfigError: API keys are required, but their field is unreadable: a default would admit every client.
    """
    notes: list[str] = []
    spec = Part(manifest.get("spec"), "spec", notes)
    gateway = spec.part("gateway")
    if not gateway.flag("enabled", False) and not leaving:
        return None, tuple(notes)
    metadata = manifest["metadata"]
    key = ServiceKey(metadata["namespace"], metadata["name"])
    defaults = ServiceConfig(key, metadata["uid"], key.name)
    engine, slo = spec.part("engine"), spec.part("slo")
    scheduling = engine.part("scheduling")
    config = ServiceConfig(
        key=key,
        uid=defaults.uid,
        model=spec.part("model").text("servedName", defaults.model),
        engine=engine_type(engine),
        ttft_s=slo.seconds("ttftP95", DEFAULT_TTFT_S) if spec.has("slo") else None,
        ttft_per_token_s=slo.seconds("ttftPerThousandTokens", 0.0) / 1000,
        tpot_s=slo.seconds("tpotP95", defaults.tpot_s),
        by_deadline=scheduling.text("policy", "deadline") == "deadline",
        classes=_classes(scheduling),
        priority_aging_s=scheduling.seconds("priorityAging", defaults.priority_aging_s),
        max_num_seqs=engine.whole("maxNumSeqs", defaults.max_num_seqs, least=1),
        hold=_hold(gateway.part("hold")),
        continuation=gateway.flag("continuation", defaults.continuation),
        max_attempts=gateway.whole("maxAttempts", defaults.max_attempts, least=1),
        weights=_weights(gateway.part("scores")),
        **_auth(gateway),
        tenants=_tenants(gateway),
        default_limits=_limits(gateway.part("defaultLimits")),
        inference_pool=gateway.part("inferencePool").flag("enabled", False),
        apart=_apart(spec.part("disaggregation").text("mode", defaults.apart)),
        kv_events=KvEventPorts(KV_EVENTS_PORT, KV_REPLAY_PORT) if engine.flag("kvEvents", False) else None,
    )
    return config, tuple(notes)


def _auth(gateway: Part) -> dict[str, Any]:
    """Returns the fields of the configuration that say whom to admit. An `auth` that names no one is ambiguous, so it
    is an error, and so is a part of it that cannot be read."""
    if not gateway.has("auth"):
        return {}
    auth = gateway.part("auth")
    name, tenants = auth.text("apiKeysSecret", None), auth.texts("jwtTenants")
    unread = auth.has("apiKeysSecret") != (name is not None) or auth.has("jwtTenants") != bool(tenants)
    if unread or (name is None and not tenants):
        raise ServiceConfigError("spec.gateway.auth must name a Secret in apiKeysSecret, or tenants in jwtTenants")
    return {"api_keys_secret": name, "jwt_tenants": tenants}


def _apart(mode: str) -> Apart:
    return "Auto" if mode == "Auto" else "Fixed" if mode == "Fixed" else "Off"


def _classes(scheduling: Part) -> tuple[ServiceClass, ...]:
    classes = []
    for part in scheduling.parts("classes"):
        name = part.text("name", None)
        if name is not None:
            weight, priority = part.number("weight", 1.0), part.whole("priority", 0, least=-100)
            classes.append(ServiceClass(name, weight or 1.0, priority, part.part("slo").seconds("ttftP95", None)))
    return tuple(classes)


def _hold(hold: Part) -> HoldBounds:
    defaults = HoldBounds()
    return HoldBounds(
        max_requests=hold.whole("maxRequests", defaults.max_requests),
        max_bytes=hold.whole_bytes("maxBytes", defaults.max_bytes),
        max_wait_s=hold.seconds("maxWait", defaults.max_wait_s),
    )


def _weights(scores: Part) -> ScoreWeights:
    defaults = ScoreWeights()
    return ScoreWeights(
        pending_tokens=scores.number("pendingTokens", defaults.pending_tokens),
        running=scores.number("running", defaults.running),
        kv_cache=scores.number("kvCache", defaults.kv_cache),
        predicted_ttft=scores.number("predictedTtft", defaults.predicted_ttft),
        prefix=scores.number("prefix", defaults.prefix),
    )


def _tenants(gateway: Part) -> tuple[TenantConfig, ...]:
    tenants = []
    for part in gateway.parts("tenants"):
        name = part.text("name", None)
        if name is not None:
            tenants.append(TenantConfig(name, part.number("weight", 1.0) or 1.0, _limits(part)))
    return tuple(tenants)


def _limits(part: Part) -> RateLimits:
    return RateLimits(
        requests_per_minute=part.whole("requestsPerMinute", None),
        tokens_per_minute=part.whole("tokensPerMinute", None),
        concurrent_requests=part.whole("concurrentRequests", None),
    )

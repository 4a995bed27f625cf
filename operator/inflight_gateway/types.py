"""Data types shared by the parts of the gateway. Seconds are of one monotonic clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from inflight_base.manifest import defaults
from inflight_base.manifest.engines import EngineType
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.units import parse_duration, whole_bytes
from inflight_cost.model import CostModel
from inflight_policies.priority import PRIORITY_AGING_S
from inflight_settings.limits import DEFAULT_LIMITS, Limits

DEFAULT_TTFT_S = parse_duration(defaults.TTFT_P95)


@dataclass(frozen=True, slots=True)
class HoldBounds:
    """Bounds of held requests for one service.

    Attributes:
        max_requests: most held requests. max_bytes: most bytes of their bodies. max_wait_s: longest wait of a
            request, in seconds.
    """

    max_requests: int = defaults.HOLD_MAX_REQUESTS
    max_bytes: int = whole_bytes(defaults.HOLD_MAX_BYTES)
    max_wait_s: float = parse_duration(defaults.HOLD_MAX_WAIT)


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Limits of one tenant, over all its requests to a service. None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """Settings of one tenant. Attributes: weight: relative share of tokens while several tenants wait."""

    name: str
    weight: float = 1.0
    limits: RateLimits = RateLimits()


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """A service class (spec.engine.scheduling.classes). Attributes: ttft_s: its target, None: that of the service."""

    name: str
    weight: float = 1.0
    priority: int = 0
    ttft_s: float | None = None


_DEFAULT_CLASS = ServiceClass("default")


@dataclass(frozen=True, slots=True)
class ScoreWeights:
    """Weight of each score in a pick; see `pick/`. 0 disables a score."""

    pending_tokens: float = 1.0
    running: float = 1.0
    kv_cache: float = 1.0
    predicted_ttft: float = 1.0
    prefix: float = 1.0


class KvEventPorts(NamedTuple):
    """Ports of an engine that publishes KV cache events. Attributes: replay_port: for batches that were missed; None:
    there is none."""

    port: int
    replay_port: int | None = None


Apart: TypeAlias = Literal["Off", "Auto", "Fixed"]
"""Values of spec.disaggregation.mode."""


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """A service behind the gateway, from its InferenceService.

    Attributes:
        uid: UID of the InferenceService.
        model: name that clients send (spec.model.servedName or its default).
        engine: type of its engines.
        ttft_s, tpot_s: targets, in seconds. ttft_s is None without `spec.slo`.
        by_deadline: requests with a TTFT target wait in the order of the engine's policy `deadline`.
        classes: the first is the default; empty: one class, `default`.
        priority_aging_s: seconds of waiting that count as one step of priority.
        max_num_seqs: capacity of each engine.
        continuation: responses continue at another replica after a failure.
        max_attempts: most replicas that are tried for a request.
        api_keys_secret: Secret of the same namespace with the keys; None: no key is required.
        jwt_tenants: tenants whose tokens the service accepts; `*`: all; empty: no token is accepted.
        default_limits: limits of each tenant not listed in `tenants`.
        inference_pool: other gateways find the service by an InferencePool.
        kv_events: ports where its engines publish KV cache events; None: they do not.
        apart: when engines of the service's prefill set compute prompts, see `pick.apart`.
    """

    key: ServiceKey
    uid: str
    model: str
    engine: EngineType = field(default_factory=EngineType)
    ttft_s: float | None = None
    ttft_per_token_s: float = 0.0
    tpot_s: float = parse_duration(defaults.TPOT_P95)
    by_deadline: bool = True
    classes: tuple[ServiceClass, ...] = ()
    priority_aging_s: float = PRIORITY_AGING_S
    max_num_seqs: int = DEFAULT_LIMITS.max_num_seqs
    hold: HoldBounds = HoldBounds()
    continuation: bool = True
    max_attempts: int = defaults.MAX_ATTEMPTS
    weights: ScoreWeights = ScoreWeights()
    api_keys_secret: str | None = None
    jwt_tenants: tuple[str, ...] = ()
    tenants: tuple[TenantConfig, ...] = ()
    default_limits: RateLimits = RateLimits()
    inference_pool: bool = False
    kv_events: KvEventPorts | None = None
    apart: Apart = "Off"

    @property
    def keyed(self) -> bool:
        """True if a request needs an API key or a token, and so has a tenant."""
        return self.api_keys_secret is not None or bool(self.jwt_tenants)

    @property
    def picks_ttft_s(self) -> float:
        """TTFT that picks aim at, in seconds: the target, or that of a `spec.slo` without one, as scaling does."""
        return DEFAULT_TTFT_S if self.ttft_s is None else self.ttft_s

    def service_class(self, name: str | None) -> ServiceClass:
        """Returns the class of this name. The engine rejects an unknown one; until then it counts as the first."""
        for one in self.classes:
            if one.name == name:
                return one
        return self.classes[0] if self.classes else _DEFAULT_CLASS

    def ttft_of(self, chosen: ServiceClass) -> float | None:
        """Returns the TTFT target by which requests of a class wait, in seconds; None: by arrival."""
        return (self.ttft_s if chosen.ttft_s is None else chosen.ttft_s) if self.by_deadline else None

    def tenant(self, name: str) -> TenantConfig:
        """Settings of a tenant, whether it is listed or not."""
        for one in self.tenants:
            if one.name == name:
                return one
        return TenantConfig(name, limits=self.default_limits)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An engine that takes requests: ready, not draining.

    Attributes:
        address: IP:PORT of its API. pod: name.
        prefill: it computes prompts for other engines of the service, which answer (`spec.disaggregation`).
    """

    address: str
    pod: str
    prefill: bool = False


def answering(endpoints: Sequence[Endpoint], apart: Apart) -> Sequence[Endpoint]:
    """Returns the endpoints that answer requests: not those of a prefill set, unless there are no others."""
    return [one for one in endpoints if not one.prefill] or (endpoints if apart != "Off" else ())


class GatewayPod(NamedTuple):
    """A ready gateway pod. Attributes: address: IP:PORT where its picker takes the streams of other pods' relays."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class EngineSample:
    """An engine's metrics, as last scraped.

    Attributes:
        at: when the scrape began, in seconds.
        limits: limits in force; the default if the page lacks them.
        cost: cost model that the engine fitted; None before its first fit.
        draining: the engine rejects new requests.
        asleep: the engine has given back its KV cache: nothing of a prompt is cached.
        disk_slowness, peer_slowness: time of reading a block from its disk, or from another engine, by that of copying
            one from its host memory; 0: not measured.
    """

    at: float
    running: int = 0
    waiting: int = 0
    waiting_prompt_tokens: int = 0
    kv_utilization: float = 0.0
    kv_cache_tokens: int = 0
    limits: Limits = DEFAULT_LIMITS
    cost: CostModel | None = None
    draining: bool = False
    asleep: bool = False
    disk_slowness: float = 0.0
    peer_slowness: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestView:
    """Properties of a request before it reaches a replica.

    Attributes:
        prompt_tokens: estimated number; exact for lists of token ids up to `MAX_DECODED_BYTES`.
        max_tokens: most output tokens of each choice that the client asks for; None: not set.
        choices: answers that the engine generates: `n` of each prompt.
        prefix: hashes of the prompt's leading blocks, each of all text up to its block's end (with tenant and salt).
        block_tokens: estimated tokens of one of these blocks.
        deadline: when its first token is due.
        body_bytes: memory that holding the request takes.
        attempt: number of the attempt, from 1.
        avoid: addresses of endpoints that failed this request.
        external_id: X-Request-Id, for engines, logs and users; `request_id` is the gateway's own, the same for all
            attempts.
        handed_over: an engine that had the request gives the next one its keys and values.
    """

    request_id: str
    service: ServiceKey
    arrived: float
    path: str = "/v1/chat/completions"
    prompt_tokens: int = 0
    max_tokens: int | None = None
    choices: int = 1
    service_class: str = "default"
    priority: int = 0
    tenant: str = ""
    prefix: tuple[int, ...] = ()
    block_tokens: int = 64
    deadline: float = float("inf")
    body_bytes: int = 0
    attempt: int = 1
    avoid: frozenset[str] = frozenset()
    external_id: str = ""
    handed_over: bool = False


EXACT, APPROXIMATE = "exact", "approximate"
"""Indexes of a replica's prefix cache: by its KV cache events, and by the prompts that were sent there."""


@dataclass(frozen=True, slots=True)
class Pick:
    """The pick for a request.

    Attributes:
        endpoints: best first; Envoy tries them in this order.
        reason: why the first endpoint is first, as one word for metrics: `prefix`, `least-work`, `only`,
            `least-requests`, ...
        predicted_ttft_s: TTFT at the first endpoint; None: not known.
        first_token_within_s: seconds without a first token after which the request is retried elsewhere.
        cached_tokens: prompt tokens that the first endpoint should have in its prefix cache.
        scores: scores of the first endpoint by name, for display.
        prefill_s: part of the predicted TTFT that grows with the request's own prompt: not its first step's decodes.
            None: not known.
        prefill: the endpoints compute the prompt, and the answer goes on at another one.
    """

    endpoints: tuple[Endpoint, ...]
    reason: str
    predicted_ttft_s: float | None = None
    first_token_within_s: float = 30.0
    cached_tokens: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    prefill_s: float | None = None
    prefill: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """A response of the gateway itself to a request. Attributes: code, message, param: fields of OpenAI's error
    object."""

    status: int
    code: str
    message: str
    headers: tuple[tuple[str, str], ...] = ()
    param: str | None = None


RETRY_AFTER_S = 5
"""Retry-After where no replica can take a request: by then one may have become free or ready."""


def no_replica(message: str) -> Refusal:
    """Returns the refusal of a request that no replica can take now."""
    return Refusal(503, "no_replica", message, (("retry-after", str(RETRY_AFTER_S)),))


def service_deleted(service: ServiceKey) -> Refusal:
    """Returns the refusal of a request whose service was deleted since it was resolved."""
    return Refusal(404, "service_not_found", f"{service} was deleted")


class PromptBlocks(NamedTuple):
    """The blocks of a prompt, as its engine tells them.

    Attributes:
        size: tokens of a block. tokens: of the prompts of the request, one or several.
        names: of the full blocks of the first one, as KV cache events have them: 8 bytes each, little endian.
    """

    size: int
    tokens: int
    names: bytes


NAME_BYTES = 8
"""Bytes of the name of a block."""

MOST_NAMED = 4096
"""Most blocks of a prompt that an engine tells."""

ENGINES_DIED_CODE = "engines_died"
"""Error code of a request that is not tried again because engines died while they processed it."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A relay's report of a finished request, over all its attempts.

    Attributes:
        status: HTTP status that the client got; 0: the client disconnected before one; None: no relay reported it.
        endpoints: endpoints that were tried, in order.
        continuations: number of continuations elsewhere after tokens had been sent.
        longest_gap_s: longest time between two writes to the client after the first token, in seconds.
        error: code of the relay's error that ended the response, before or after its head; `client_left`; empty: none.
        external_id: X-Request-Id; `request_id` is the gateway's own.
        tenant, key_id: whom the API key belongs to, and the id of the key; empty at services without keys.
        path: without its query; empty: refused before it was read.
    """

    request_id: str
    service: ServiceKey
    status: int | None
    stream: bool
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    ttft_s: float | None = None
    e2e_s: float = 0.0
    longest_gap_s: float = 0.0
    endpoints: tuple[str, ...] = ()
    continuations: int = 0
    error: str = ""
    external_id: str = ""
    tenant: str = ""
    key_id: str = ""
    path: str = ""

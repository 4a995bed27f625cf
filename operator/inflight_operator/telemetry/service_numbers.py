"""The numbers that the operator shows of each service, one series each: names, help texts, and sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inflight_operator.decide.autopilot import Sizing
from inflight_operator.limits import Knob, Limits
from inflight_operator.observe.attainment import Attainment
from inflight_operator.observe.gateway_view import GatewayView


@dataclass(frozen=True, slots=True)
class Shown:
    """Values of one service after a round.

    Attributes:
        desired: replicas the operator recommends; not applied in scaling.mode External.
        replicas: replicas ordered.
        ready: pods that take requests.
        unmeasured: of those, pods whose newest sample is missing or stale.
        blocked: replicas that will not become ready without intervention.
        waiting, running: requests, over all pods.
        kv_utilization: share of the KV cache in use, 0 to 1, the mean of pods.
        preemptions_per_minute: over all pods.
        limits: in force.
        overridden: whether limits set by hand are in force.
        modelled: the limits that the cost model found best; None without a result.
        scrape_age: seconds since the stalest pod's newest sample.
        ttft_target, tpot_target: seconds, for the 95th percentiles.
        sizing: demand against capacity; None while no cost model sizes it.
        cost_per_hour: of the existing pods; None without a price.
        currency: of the price, empty if unknown.
        gateway: reports of its pods; None for a service that is not behind the gateway.
        asleep: whether the service is scaled to zero; None for one that never is.
    """

    desired: int
    replicas: int
    ready: int
    unmeasured: int
    blocked: int
    waiting: int
    running: int
    kv_utilization: float
    preemptions_per_minute: float
    limits: Limits
    overridden: bool
    scrape_age: float
    ttft_target: float
    tpot_target: float
    sizing: Sizing | None = None
    cost_per_hour: float | None = None
    currency: str = ""
    modelled: Limits | None = None
    gateway: GatewayView | None = None
    asleep: bool | None = None


def _sizing(name: str) -> Callable[[Shown], float | None]:
    return lambda shown: None if shown.sizing is None else getattr(shown.sizing, name)


def _modelled(knob: Knob) -> Callable[[Shown], float | None]:
    return lambda shown: None if shown.modelled is None else shown.modelled.get(knob)


def _gateway(name: str) -> Callable[[Shown], float | None]:
    return lambda shown: None if shown.gateway is None else getattr(shown.gateway, name)


GAUGES: tuple[tuple[str, str, Callable[[Shown], float | None]], ...] = (
    (
        "inflight_operator_desired_replicas",
        "Replicas that the operator recommends. In scaling.mode External another scaler decides.",
        lambda shown: shown.desired,
    ),
    ("inflight_operator_service_replicas", "Replicas ordered.", lambda shown: shown.replicas),
    ("inflight_operator_service_ready_replicas", "Pods that take requests.", lambda shown: shown.ready),
    (
        "inflight_operator_service_unmeasured_replicas",
        "Ready pods without recent metrics.",
        lambda shown: shown.unmeasured,
    ),
    (
        "inflight_operator_service_blocked_replicas",
        "Replicas that will not become ready without intervention.",
        lambda shown: shown.blocked,
    ),
    ("inflight_operator_service_waiting_requests", "Waiting requests, over all pods.", lambda shown: shown.waiting),
    ("inflight_operator_service_running_requests", "Running requests, over all pods.", lambda shown: shown.running),
    (
        "inflight_operator_service_kv_utilization",
        "KV cache in use, 0 to 1, mean of the pods.",
        lambda shown: shown.kv_utilization,
    ),
    (
        "inflight_operator_service_preemptions_per_minute",
        "Preempted requests per minute, over all pods.",
        lambda shown: shown.preemptions_per_minute,
    ),
    (
        "inflight_operator_service_max_num_seqs",
        "Limit in force: requests that an engine runs at once.",
        lambda shown: shown.limits.max_num_seqs,
    ),
    (
        "inflight_operator_service_max_num_batched_tokens",
        "Limit in force: tokens that an engine computes in one step.",
        lambda shown: shown.limits.max_num_batched_tokens,
    ),
    (
        "inflight_operator_service_limits_overridden",
        "1 while limits set by hand (spec.tuning.override) are in force and tuning is paused.",
        lambda shown: shown.overridden,
    ),
    (
        "inflight_operator_service_model_max_num_seqs",
        "The max_num_seqs that is best by the cost model, within the bounds of tuning.",
        _modelled("max_num_seqs"),
    ),
    (
        "inflight_operator_service_model_max_num_batched_tokens",
        "The max_num_batched_tokens that is best by the cost model, within the bounds of tuning.",
        _modelled("max_num_batched_tokens"),
    ),
    (
        "inflight_operator_service_ttft_target_seconds",
        "Target of the 95th percentile of time to first token, for a prompt of the mean length.",
        lambda shown: shown.ttft_target,
    ),
    (
        "inflight_operator_service_tpot_target_seconds",
        "Target of the 95th percentile of time per output token.",
        lambda shown: shown.tpot_target,
    ),
    (
        "inflight_operator_service_demand_requests_per_second",
        "Requests per second expected when a replica ordered now is ready.",
        _sizing("rate"),
    ),
    (
        "inflight_operator_service_replica_requests_per_second",
        "Requests per second that one replica sustains by the cost model, within the targets if it can keep them.",
        _sizing("each"),
    ),
    (
        "inflight_operator_service_needed_replicas",
        "Replicas that the expected demand needs, without margin.",
        _sizing("need"),
    ),
    (
        "inflight_operator_service_held_requests",
        "Requests that wait at the gateway for a replica; with spec.gateway.enabled.",
        _gateway("held"),
    ),
    (
        "inflight_operator_service_held_prompt_tokens",
        "Estimated prompt tokens of the requests that wait at the gateway.",
        _gateway("held_prompt_tokens"),
    ),
    (
        "inflight_operator_service_oldest_held_seconds",
        "Seconds that the oldest request at the gateway has waited; 0 without any.",
        _gateway("oldest_held_s"),
    ),
    (
        "inflight_operator_service_asleep",
        "1 while the service is scaled to zero; with spec.scaling.minReplicas 0.",
        lambda shown: shown.asleep,
    ),
    (
        "inflight_operator_scrape_age_seconds",
        "Seconds since the stalest ready pod was last scraped.",
        lambda shown: shown.scrape_age,
    ),
)

COUNTERS: tuple[tuple[str, str, Callable[[Attainment], float]], ...] = (
    ("inflight_operator_service_first_tokens", "First tokens of requests; with spec.slo.", lambda of: of.ttft.total),
    (
        "inflight_operator_service_first_tokens_in_target",
        "First tokens within the TTFT target, interpolated from the engines' histograms.",
        lambda of: of.ttft.within,
    ),
    (
        "inflight_operator_service_outputs",
        "Finished requests of two tokens or more; with spec.slo.",
        lambda of: of.tpot.total,
    ),
    (
        "inflight_operator_service_outputs_in_target",
        "Finished requests within the TPOT target, interpolated from the engines' histograms.",
        lambda of: of.tpot.within,
    ),
)

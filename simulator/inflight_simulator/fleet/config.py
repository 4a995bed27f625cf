"""Configuration of a fleet simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inflight_cost.capacity import Targets
from inflight_cost.model import CostModel
from inflight_gateway.types import Apart
from inflight_operator.decide.replicas.start_up import Phases
from inflight_settings.limits import Limits
from inflight_settings.scheduling import PolicyName

Routing = Literal["round-robin", "least-requests", "least-work", "gateway"]
ROUTINGS: tuple[Routing, ...] = ("round-robin", "least-requests", "least-work", "gateway")

REFERENCE_COST = CostModel(
    base_s=5.5e-3,
    decode_seq_s=15e-6,
    prefill_token_s=30e-6,
    decode_kv_token_s=0.045e-6,
    prefill_context_token_s=1.05e-9,
    copied_token_s=2.6e-6,
)
"""An 8B model on one H100-class GPU, by public arithmetic, not measured."""

REFERENCE_CAPACITY = Limits(512, 16_384)
START_LIMITS = Limits(256, 2048)


@dataclass(frozen=True, slots=True)
class ReplicaModel:
    """Properties of each replica.

    Attributes:
        cost: seconds of a step.
        kv_tokens: tokens that the KV cache holds. block_size: tokens in a KV block.
        host_tokens: tokens that host memory behind the KV cache holds, where prompts share something.
        disk_tokens: tokens that a disk behind that memory holds.
        disk_read_token_s, disk_write_token_s: seconds in which the disk reads and writes the keys and values of a
            token; None: unknown.
        kv_bytes_per_token: keys and values of a token; None: unknown.
        kv_headroom: share of the blocks that admission leaves free.
        capacity: largest limits that the engine accepts.
        noise: standard deviation of the logarithm of a step's duration around the cost model's.
        price: price of a replica-hour; None: unknown.
    """

    cost: CostModel = REFERENCE_COST
    kv_tokens: int = 400_000
    block_size: int = 16
    host_tokens: int = 0
    disk_tokens: int = 0
    disk_read_token_s: float | None = None
    disk_write_token_s: float | None = None
    kv_bytes_per_token: int | None = 131_072
    kv_headroom: float = 0.01
    capacity: Limits = REFERENCE_CAPACITY
    noise: float = 0.03
    price: float | None = None


@dataclass(frozen=True, slots=True)
class RequestTargets:
    """Targets of each request, in seconds.

    Attributes:
        ttft: time to first token; long_ttft: of prompts of more than long_prompt tokens.
        tpot: mean time per output token after the first.
        prefill_factor: a request may take at least ttft + prefill_factor x the time its prefill takes alone; None: the
            prefill alone does not count.
    """

    ttft: float = 0.5
    long_ttft: float = 1.0
    long_prompt: int = 4000
    tpot: float = 0.05
    prefill_factor: float | None = None


@dataclass(frozen=True, slots=True)
class GatewayModel:
    """The gateway in front of a fleet.

    Attributes:
        spec: `spec.gateway` of the service: bounds of the hold queue, tenants, limits and scores.
        pods: gateway pods, one of which owns the service.
        hop_s: seconds that a message between two of its pods takes.
        owner_ends_s: seconds after the first arrival at which the pod that owns the service ends; None: never.
    """

    spec: Mapping[str, Any] = field(default_factory=dict)
    pods: int = 1
    hop_s: float = 0.0005
    owner_ends_s: float | None = None


@dataclass(frozen=True, slots=True)
class PrefillSet:
    """Replicas that compute prompts for those that answer.

    Attributes:
        mode: `spec.disaggregation.mode` of the service.
        replicas: there from the start, whatever the scaler orders.
        tokens_per_s: tokens whose keys and values a replica reads from others in a second.
        limits: of its replicas; None: those of the replicas that answer.
    """

    mode: Apart
    replicas: int
    tokens_per_s: float
    limits: Limits | None = None


def undivided(seconds: float) -> Phases:
    """Returns a start-up of which only the duration is known."""
    return Phases(scheduled=0.0, image=0.0, weights=0.0, engine=seconds, endpoints=0.0)


ONE_MINUTE = undivided(60.0)


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """Configuration of a simulated fleet.

    Attributes:
        limits: of all pods at their start.
        start_up: seconds of each phase from a pod's order to its first request.
        initial_replicas: ready at time 0.
        policy: order of waiting requests, a name of the engine's policies.
        tuning: let the operator's tuning change limits.
        gateway: for the routing `gateway`.
        prefill: with that routing; None: each replica computes the prompts that it answers.
    """

    replica: ReplicaModel = field(default_factory=ReplicaModel)
    limits: Limits = START_LIMITS
    routing: Routing = "least-requests"
    start_up: Phases = ONE_MINUTE
    min_replicas: int = 1
    max_replicas: int = 100
    initial_replicas: int = 1
    policy: PolicyName = "fcfs"
    tuning: bool = False
    targets: RequestTargets = field(default_factory=RequestTargets)
    seed: int = 0
    gateway: GatewayModel = field(default_factory=GatewayModel)
    prefill: PrefillSet | None = None

    @property
    def start_up_s(self) -> float:
        """Seconds from a pod's order to its first request."""
        return self.start_up.total

    @property
    def ttft_per_token(self) -> float:
        """Seconds that each prompt token adds to the TTFT target in a service's spec, which has no other form of
        targets that grow."""
        return (self.targets.prefill_factor or 0.0) * self.replica.cost.prefill_token_s

    @property
    def service_targets(self) -> Targets:
        """The targets as in a service's spec, converted for the capacity model."""
        return Targets(self.targets.ttft, self.targets.tpot, self.ttft_per_token)

    @property
    def capacity(self) -> Limits:
        """Largest limits of the pods: with fixed limits they are started with those."""
        return self.replica.capacity.at_least(self.limits) if self.tuning else self.limits

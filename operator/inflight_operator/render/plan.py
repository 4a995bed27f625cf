"""What rendering needs beside the service itself: decisions of the loop, and how the operator was installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]
"""A Kubernetes object as the API server takes it."""


@dataclass(frozen=True, slots=True)
class LimitsInForce:
    """The limits new pods start with.

    Attributes:
        max_num_seqs: most requests an engine runs at once.
        max_num_batched_tokens: most tokens an engine computes in one step.
        revision: number of the change that set them; the engine refuses older ones.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    revision: int


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """What the loop decided for the children of one service.

    Attributes:
        replicas: replicas the operator decided on; None in mode External, where `spec.replicas` counts.
        limits: limits in force; None before the first tuning decision: pods start at their capacities, revision 0.
        admin_token: token for the engine's admin calls, kept from the live Secret or freshly made.
    """

    replicas: int | None
    limits: LimitsInForce | None
    admin_token: str


@dataclass(frozen=True, slots=True)
class Settings:
    """How the operator was installed.

    Attributes:
        engine_image: image of engines whose service names none.
        available_apis: optional APIs the cluster has, as `GROUP/VERSION/KIND`.
        operator_namespace: where the operator's pods run; None when it runs outside the cluster.
        admin_peers: further NetworkPolicyPeers that may reach the admin port of engines.
    """

    engine_image: str
    available_apis: frozenset[str] = frozenset()
    operator_namespace: str | None = None
    admin_peers: tuple[Manifest, ...] = ()

"""The plan of a round and its outcome, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from inflight_base.manifest import Manifest
from inflight_operator.decide.decision import Decision
from inflight_operator.decide.prefetch import Prefetching
from inflight_operator.decide.replicas.autopilot import Sizing
from inflight_operator.decide.replicas.start_up import LeadTime
from inflight_operator.decide.status.conditions import Finding
from inflight_operator.observe.pods import PodView
from inflight_operator.reconcile.front import Front
from inflight_operator.reconcile.memory import CanaryInForce, Memory
from inflight_operator.reconcile.views import Measured
from inflight_settings.limits import Limits, LimitsInForce

Child = tuple[str, str]
"""Kind and name of a child."""

UpgradeState = Literal["Pending", "Moving", "Stuck"]
"""State of a service for which there is a newer engine release: it waits for its turn, its pods are being replaced, or
their replacement has made no progress for its deadline."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Attributes:
    replicas: replicas of the Deployment.
    desired: the operator's recommendation; not applied in `scaling.mode: External`.
    limits: limits in force.
    canary: the pod with trial limits; None without a canary.
    modelled: limits that the cost model finds best; None without a model.
    in_force: ready pods that run with them.
    children: desired state, without the Deployment if `hold_template`, the Service if `front.hold`, and the
        NetworkPolicy if it cannot be read from the spec who may connect.
    front: step in which the service's address moves.
    hold_template: keep the live Deployment's pod template, and set only its replicas and the bounds of its rollouts.
    push: ready pods to push limits to.
    deletion_costs: pod deletion costs to set before a scale-down, by pod name.
    decisions: decisions of this round.
    findings: all conditions.
    upgrade: state of the upgrade to a newer engine release; None without one.
    prefetch: Jobs that fetch the model before engines need it, and how far they are; None without any.
    peers: engines that others may read weights from: uid of the pod, and address of the admin port.
    loading: pods whose engines do that.
    memory: input of the next round.
    measured: measurements over the window, for the status.
    blocked: replicas that will not become ready without intervention.
    sizing: demand against the capacity of a replica; None without a cost model.
    lead_time: expected start of a replica that is ordered now.
    """

    replicas: int
    desired: int
    limits: LimitsInForce
    in_force: int
    children: tuple[Manifest, ...]
    hold_template: bool
    front: Front
    findings: tuple[Finding, ...]
    memory: Memory
    measured: Measured
    blocked: int
    sizing: Sizing | None = None
    lead_time: LeadTime = field(default_factory=LeadTime)
    canary: CanaryInForce | None = None
    modelled: Limits | None = None
    push: tuple[tuple[PodView, LimitsInForce], ...] = ()
    deletion_costs: Mapping[str, int] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    upgrade: UpgradeState | None = None
    prefetch: Prefetching | None = None
    peers: tuple[tuple[str, str], ...] = ()
    loading: tuple[PodView, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a plan.

    Attributes:
        failures: errors by kind and name of the child, including writes that back off in this round.
        failed: whether something was refused in this round.
    """

    failures: Mapping[Child, str] = field(default_factory=dict)
    failed: bool = False

"""What one round wants done, and what came of it, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from inflight_operator.decide.autopilot import Sizing
from inflight_operator.decide.conditions import Finding
from inflight_operator.decide.decision import Decision
from inflight_operator.limits import Limits, LimitsInForce
from inflight_operator.observe.pods import PodView
from inflight_operator.reconcile.memory import CanaryInForce, Memory
from inflight_operator.reconcile.views import Measured
from inflight_operator.render import Manifest

Child = tuple[str, str]
"""Kind and name."""

UpgradeState = Literal["Pending", "Moving"]
"""Of a service for which there is a newer engine release: it waits for its turn, or its pods are being replaced."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Attributes:
    replicas: of the Deployment.
    desired: what the operator finds right; in `scaling.mode: External` only an opinion.
    limits: in force.
    canary: the pod that tries others; None while there is none.
    modelled: limits that the cost model finds best; None without a model.
    in_force: ready pods that run with them.
    children: as they are to be, without the Deployment where `hold_template` says so.
    hold_template: leave the live Deployment's pod template as it is, and set only its replicas.
    tell: ready pods that are to be told their limits.
    deletion_costs: to be set before a scale-down, by pod name.
    decisions: made in this round.
    findings: all conditions.
    upgrade: where the service stands with a newer engine release; None without one.
    memory: for the next round.
    measured: over the window, for the status.
    blocked: replicas that will not become ready unless something is done about them.
    sizing: demand against what a replica carries; None while no cost model sizes it.
    """

    replicas: int
    desired: int
    limits: LimitsInForce
    in_force: int
    children: tuple[Manifest, ...]
    hold_template: bool
    findings: tuple[Finding, ...]
    memory: Memory
    measured: Measured
    blocked: int
    sizing: Sizing | None = None
    canary: CanaryInForce | None = None
    modelled: Limits | None = None
    tell: tuple[tuple[PodView, LimitsInForce], ...] = ()
    deletion_costs: Mapping[str, int] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    upgrade: UpgradeState | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a plan.

    Attributes:
        failures: what stands in the way, by kind and name of the child, also where it was not tried in this round.
        failed: whether something was refused in this round.
    """

    failures: Mapping[Child, str] = field(default_factory=dict)
    failed: bool = False

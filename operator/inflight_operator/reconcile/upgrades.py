"""Rollout of pod template changes: user changes at once, none while the spec cannot be fully parsed, and engine
upgrades paced: a limited number of services at a time, each only after the last one is ready or stuck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.units import Share
from inflight_operator.decide.decision import Number, Reason
from inflight_operator.decide.status.conditions import DeploymentView
from inflight_operator.reconcile.memory import Memory
from inflight_operator.reconcile.plan import UpgradeState
from inflight_operator.reconcile.snapshot import Snapshot
from inflight_operator.render.deployment import SPEC_DIGEST, TEMPLATE_DIGEST


@dataclass(frozen=True, slots=True)
class Template:
    """Attributes:
    hold: keep the live pod template.
    state: state of the upgrade to a newer engine release.
    why: reason to report; None without one.
    """

    hold: bool = False
    state: UpgradeState | None = None
    why: Reason | None = None


def decide_template(
    snapshot: Snapshot, memory: Memory, children: Sequence[Manifest], rollout: DeploymentView | None, *, ready: int
) -> Template:
    """Returns the decision on the pod template in this round.

    Args:
        children: children as rendered now.
        rollout: the live Deployment; None without one.
        ready: pods that take requests.
    """
    wanted = next(child for child in children if child["kind"] == "Deployment")
    live = _annotations(snapshot.deployment)
    in_place = live.get(TEMPLATE_DIGEST) == _annotations(wanted)[TEMPLATE_DIGEST]
    if snapshot.unread:
        # A deleted Deployment is created again, from the readable part of the spec.
        first = snapshot.deployment is None and snapshot.service.status.engine is None
        hold = first or (snapshot.deployment is not None and not in_place)
        return Template(hold=hold, why=Reason("SpecNotUnderstood", {"said": "; ".join(snapshot.unread)}))
    if snapshot.deployment is None:
        return Template()
    if in_place:
        return _moving(memory, rollout, ready)
    if not _same_spec(snapshot, live):
        return Template()
    if not any(pod.serves for pod in snapshot.pods):
        return Template()  # no pod is ready, so an upgrade interrupts nothing
    if memory.moving is not None or snapshot.may_move:
        return Template(state="Moving", why=Reason("EngineUpgrade"))
    why = snapshot.stopped or Reason("EngineUpgradePending", {"holder": snapshot.mover})
    return Template(hold=True, state="Pending", why=why)


def _moving(memory: Memory, rollout: DeploymentView | None, ready: int) -> Template:
    """Returns the state of an upgrade whose template is in place. It is over once all pods are of the newest template,
    and as many are ready as before: an upgrade does not have to fix pods that were blocked before."""
    if memory.moving is None or rollout is None:
        return Template()
    if rollout.rolled_out and ready >= min(memory.moving, memory.replicas):
        return Template()
    if rollout.current and rollout.deadline_exceeded:
        return Template(state="Stuck", why=Reason("EngineUpgradeStuck"))
    return Template(state="Moving", why=Reason("EngineUpgrade"))


def _same_spec(snapshot: Snapshot, live: Manifest) -> bool:
    """Returns True if the live pods were made from the spec as it is: then only the operator or its engine image
    changed."""
    made_from = live.get(SPEC_DIGEST)
    if made_from is not None:
        return bool(made_from == snapshot.policy.template_inputs)
    # An operator version that did not record it: the status has the observed generation.
    return snapshot.service.status.observed_generation == snapshot.service.metadata.generation


def _annotations(deployment: Manifest | None) -> Manifest:
    return (deployment or {}).get("metadata", {}).get("annotations") or {}


SERVICES_AT_ONCE, STUCK_SERVICES = Share(1), Share(10, percent=True)
"""Defaults of the pace: services that move at the same time, and that may be stuck before the upgrade stops."""

UpgradeMode = Literal["Paced", "AtOnce", "Held"]
"""AtOnce: all services when the operator is upgraded. Held: none, until a service's spec changes."""


class UpgradePace:
    """Upgrade turns of all services of one operator. State comes from their rounds and is not stored: a new process
    gives no turn before every service had a round.

    Args:
        at_once: services that may be moving at the same time, in mode Paced: at least one.
        budget: services that may be stuck before no further one moves, in mode Paced.
    """

    def __init__(
        self, mode: UpgradeMode = "Paced", at_once: Share = SERVICES_AT_ONCE, budget: Share = STUCK_SERVICES
    ) -> None:
        self._mode = mode
        self._at_once = at_once
        self._budget = budget
        self._known: set[ServiceKey] = set()
        self._moving: set[ServiceKey] = set()
        self._stuck: set[ServiceKey] = set()

    def may_move(self, services: int) -> bool:
        """Returns True if one more service may start to upgrade now.

        Args:
            services: number of services.
        """
        if self._mode != "Paced":
            return self._mode == "AtOnce"
        if len(self._known) < services or self.stopped(services) is not None:
            return False
        return len(self._moving) < max(1, self._at_once.of(services))

    def stopped(self, services: int) -> Reason | None:
        """Returns why no further service upgrades until one that is stuck recovers; None while services may.

        Args:
            services: number of services.
        """
        budget = self._budget.of(services)
        if self._mode != "Paced" or len(self._stuck) <= budget:
            return None
        numbers: dict[str, Number] = {"stuck": len(self._stuck), "budget": budget, "first": str(min(self._stuck))}
        return Reason("EngineUpgradeStopped", numbers)

    @property
    def holder(self) -> str:
        """Returns a service that is upgrading, to report to waiting ones; empty if none is."""
        return str(min(self._moving)) if self._moving else ""

    def note(self, key: ServiceKey, state: UpgradeState | None) -> None:
        """Records the result of a round of one service."""
        self._known.add(key)
        for kept, moved in (("Moving", self._moving), ("Stuck", self._stuck)):
            if state == kept:
                moved.add(key)
            else:
                moved.discard(key)

    def forget(self, key: ServiceKey) -> None:
        for keys in (self._known, self._moving, self._stuck):
            keys.discard(key)

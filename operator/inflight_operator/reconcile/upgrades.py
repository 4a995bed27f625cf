"""Rollout of pod template changes: user changes at once, none while the spec cannot be fully parsed, and engine
upgrades paced: a limited number of services at a time, each only after the last one is ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ServiceKey
from inflight_operator.decide.decision import Reason
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


def decide_template(snapshot: Snapshot, memory: Memory, children: Sequence[Manifest], *, rolled_out: bool) -> Template:
    """Returns the decision on the pod template in this round.

    Args:
        children: children as rendered now.
        rolled_out: True if all replicas are of the live template and ready.
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
        moving = memory.moving is not None and not rolled_out
        return Template(state="Moving", why=Reason("EngineUpgrade")) if moving else Template()
    if not _same_spec(snapshot, live):
        return Template()
    if not any(pod.serves for pod in snapshot.pods):
        return Template()  # no pod is ready, so an upgrade interrupts nothing
    if memory.moving is not None or snapshot.may_move:
        return Template(state="Moving", why=Reason("EngineUpgrade"))
    return Template(hold=True, state="Pending", why=Reason("EngineUpgradePending", {"holder": snapshot.mover}))


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


UpgradeMode = Literal["Paced", "AtOnce", "Held"]
"""AtOnce: all services when the operator is upgraded. Held: none, until a service's spec changes."""


class UpgradePace:
    """Upgrade turns of all services of one operator. State comes from their rounds and is not stored: a new process
    gives no turn before every service had a round.

    Args:
        at_once: services that may be moving at the same time, in mode Paced.
    """

    def __init__(self, mode: UpgradeMode = "Paced", at_once: int = 1) -> None:
        self._mode = mode
        self._at_once = at_once
        self._known: set[ServiceKey] = set()
        self._moving: set[ServiceKey] = set()

    def may_move(self, services: int) -> bool:
        """Returns True if one more service may start to upgrade now.

        Args:
            services: number of services.
        """
        if self._mode != "Paced":
            return self._mode == "AtOnce"
        return len(self._known) >= services and len(self._moving) < self._at_once

    @property
    def holder(self) -> str:
        """Returns a service that is upgrading, to report to waiting ones; empty if none is."""
        return str(min(self._moving)) if self._moving else ""

    def note(self, key: ServiceKey, state: UpgradeState | None) -> None:
        """Records the result of a round of one service."""
        self._known.add(key)
        if state == "Moving":
            self._moving.add(key)
        else:
            self._moving.discard(key)

    def forget(self, key: ServiceKey) -> None:
        self._known.discard(key)
        self._moving.discard(key)

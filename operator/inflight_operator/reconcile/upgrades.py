"""Paced engine upgrades: a limited number of services at a time, each only after the last one is ready."""

from __future__ import annotations

from typing import Literal

from inflight_base.manifest.keys import ServiceKey
from inflight_operator.reconcile.plan import UpgradeState

UpgradeMode = Literal["Paced", "AtOnce", "Held"]
"""AtOnce: all services when the operator is upgraded. Held: none, until a service's spec changes."""


class UpgradePace:
    """The upgrade turns of all services of one operator. State comes from their rounds and is not stored: a new process
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
        """Whether one more service may start to upgrade now.

        Args:
            services: number of services.
        """
        if self._mode != "Paced":
            return self._mode == "AtOnce"
        return len(self._known) >= services and len(self._moving) < self._at_once

    @property
    def holder(self) -> str:
        """A service that is upgrading, to report to waiting ones; empty if none is."""
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

"""Which services move to a newer engine release when: so many at a time, each only when the last one is ready."""

from __future__ import annotations

from typing import Literal

from inflight_operator.observe.cache import ServiceKey
from inflight_operator.reconcile.plan import UpgradeState

UpgradeMode = Literal["Paced", "AtOnce", "Held"]
"""AtOnce: all services when the operator is upgraded. Held: none, until a service's spec changes."""


class UpgradePace:
    """The turns of all services of one operator. What it knows comes from their rounds, so it needs no memory of its
    own: a new process gives no turn before every service had a round.

    Args:
        at_once: services that may be moving at the same time, in mode Paced.
    """

    def __init__(self, mode: UpgradeMode = "Paced", at_once: int = 1) -> None:
        self._mode = mode
        self._at_once = at_once
        self._known: set[ServiceKey] = set()
        self._moving: set[ServiceKey] = set()

    def may_move(self, services: int) -> bool:
        """Whether one more service may begin to move now.

        Args:
            services: how many there are.
        """
        if self._mode != "Paced":
            return self._mode == "AtOnce"
        return len(self._known) >= services and len(self._moving) < self._at_once

    @property
    def holder(self) -> str:
        """A service whose turn it is, for those that wait; empty when none moves."""
        return str(min(self._moving)) if self._moving else ""

    def note(self, key: ServiceKey, state: UpgradeState | None) -> None:
        """What a round found of one service."""
        self._known.add(key)
        if state == "Moving":
            self._moving.add(key)
        else:
            self._moving.discard(key)

    def forget(self, key: ServiceKey) -> None:
        self._known.discard(key)
        self._moving.discard(key)

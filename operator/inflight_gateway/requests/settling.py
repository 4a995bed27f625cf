"""A service that comes from another picker, or goes to one: its requests wait until all relays have said what runs and
what waits. Pure: the clock is an argument."""

from __future__ import annotations

from collections.abc import Iterator

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.link.wire import Ask

SETTLE_S = 0.25
"""Seconds of that wait. Relays look for pickers that fall silent each 0.1 s."""

KNOWN_S = 10.0
"""Seconds after its last request for which a service is known here."""


class Settling:
    """Services that settle."""

    def __init__(self) -> None:
        self._asked: dict[ServiceKey, float] = {}
        """When the last request of each service came."""
        self._until: dict[ServiceKey, float] = {}
        self._without: tuple[tuple[str, ...], float] = (), 0.0
        """Pods that the latest request does without, and since when requests do."""

    def came(self, ask: Ask, now: float, *, runs: bool = False) -> None:
        """Notes a request. Args: runs: an engine answers it already."""
        if ask.without != self._without[0]:
            self._without = ask.without, now
        lately = ask.without and now < self._without[1] + KNOWN_S
        moved = runs or ask.admitted or lately or ask.turns
        if moved and now >= self._asked.get(ask.service, float("-inf")) + KNOWN_S:
            self._until[ask.service] = now + SETTLE_S
        self._asked[ask.service] = now

    def went(self, service: ServiceKey, now: float) -> None:
        """Notes that a relay asks another picker, while engines go on with its requests."""
        self._asked.pop(service, None)
        self._until[service] = now + SETTLE_S

    def __contains__(self, service: ServiceKey) -> bool:
        return service in self._until

    def settled(self, now: float) -> Iterator[ServiceKey]:
        """Yields services that settle no longer."""
        for service in [one for one, until in self._until.items() if until <= now]:
            del self._until[service]
            yield service

    def forget(self, service: ServiceKey) -> None:
        """Removes a service that was deleted."""
        self._asked.pop(service, None)
        self._until.pop(service, None)

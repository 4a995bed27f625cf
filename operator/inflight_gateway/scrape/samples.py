"""The last sample of each engine, and whether the engine takes requests. Seconds are of the monotonic clock."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from inflight_gateway.types import EngineSample

logger = logging.getLogger(__name__)

UNREACHABLE_AFTER_SECONDS = 1.5
"""Seconds from the first failure of an engine that neither answers nor accepts a connection until it counts as
unreachable. A lost scrape is repeated after a second, so a single one does not count, nor do two."""


@dataclass(slots=True, eq=False)
class _Known:
    """Attributes: failing_since: time of the first failure since the engine was reached; None: it was at last."""

    failing_since: float | None = None
    sample: EngineSample | None = None
    error: str = ""
    reachable: bool = True


class Samples:
    """The last samples. The scraper writes them, the picker reads them.

    An unreachable engine keeps its place in the catalog, and its last sample: it is the last choice, but still a
    choice. If scrapes fail because of the gateway itself, all engines are equal again.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._subscribers: list[Callable[[str, bool], None]] = []

    def get(self, address: str) -> EngineSample | None:
        """Returns the last sample, whose age is now - `at`; None: never scraped successfully."""
        known = self._known.get(address)
        return None if known is None else known.sample

    def reachable(self, address: str) -> bool:
        """Returns False if scrapes and TCP connections have failed for `UNREACHABLE_AFTER_SECONDS`, or the engine
        drains (its pod may still be an endpoint for a moment, or longer while the API server is away)."""
        known = self._known.get(address)
        return known is None or (known.reachable and not (known.sample is not None and known.sample.draining))

    def error(self, address: str) -> str:
        """Returns why the last scrape failed; empty after a success."""
        known = self._known.get(address)
        return "" if known is None else known.error

    def subscribe(self, subscriber: Callable[[str, bool], None]) -> None:
        """Calls `subscriber` with the address after each sample and each change of `reachable`, and whether that has
        changed."""
        self._subscribers.append(subscriber)

    def keep(self, addresses: Collection[str]) -> None:
        """Removes all other addresses; new ones count as reached."""
        for gone in self._known.keys() - set(addresses):
            del self._known[gone]
        for address in addresses:
            self._known.setdefault(address, _Known())

    def scraped(self, address: str, sample: EngineSample, now: float) -> None:
        """Applies the sample of a scrape that succeeded."""
        known = self._known.get(address)
        if known is not None:
            before = self.reachable(address)
            known.sample, known.error = sample, ""
            known.failing_since = None
            self._set_reachable(address, known, now)
            self._notify(address, self.reachable(address) != before)

    def failed(self, address: str, error: str, *, connected: bool, now: float) -> None:
        """Notes a failed scrape. `connected`: the engine still accepted a connection."""
        known = self._known.get(address)
        if known is None:
            return
        known.error = error
        if connected:
            known.failing_since = None
        elif known.failing_since is None:
            known.failing_since = now
        if self._set_reachable(address, known, now):
            self._notify(address, True)

    def _set_reachable(self, address: str, known: _Known, now: float) -> bool:
        """Updates the reachability of an engine; returns whether it changed."""
        since = known.failing_since
        reachable = since is None or now - since < UNREACHABLE_AFTER_SECONDS
        if reachable == known.reachable:
            return False
        known.reachable = reachable
        if reachable:
            logger.info("engine %s can be reached again", address)
        else:
            logger.warning(
                "engine %s is not reached and gets requests only where no other is: %s", address, known.error
            )
        return True

    def _notify(self, address: str, moved: bool) -> None:
        for subscriber in tuple(self._subscribers):
            subscriber(address, moved)

"""Discovery of optional APIs, such as that of the Prometheus operator: they may be installed or removed at any time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from inflight_base.kube.errors import KubeApiError
from inflight_base.kube.kinds import RESOURCES
from inflight_operator.apply.kube import OPTIONAL_KINDS, OperatorApi

logger = logging.getLogger(__name__)

LOOKUP_SECONDS = 60.0
SHORTEST_SECONDS = 5.0
"""Minimum seconds between two lookups, even if writes keep failing."""


class AvailableApis:
    """Args:
        kinds: optional kinds that the operator may use.

    Attributes:
        current: the optional APIs at the last lookup, as `GROUP/VERSION/KIND`. Read it in each round.
    """

    def __init__(self, api: OperatorApi, kinds: Sequence[str] = OPTIONAL_KINDS) -> None:
        self._api = api
        self._kinds = kinds
        self.current: frozenset[str] = frozenset()

    def kinds(self) -> tuple[str, ...]:
        """The optional kinds that the cluster has."""
        return tuple(kind for kind in self._kinds if f"{RESOURCES[kind][0]}/{kind}" in self.current)

    async def refresh(self) -> set[str]:
        """Looks them up; returns the kinds that were added or removed.

        Raises:
            KubeApiError: the API server refused, or does not answer.
        """
        before = set(self.kinds())
        self._api.kind_missing.clear()
        self.current = await self._api.available_apis()
        return before ^ set(self.kinds())

    async def run(self, changed: Callable[[str], None]) -> None:
        """Looks them up once a minute, and soon after the API server rejected an unknown kind; until cancelled.

        Args:
            changed: called with each kind that was added or removed.
        """
        while True:
            await asyncio.sleep(SHORTEST_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._api.kind_missing.wait(), LOOKUP_SECONDS - SHORTEST_SECONDS)
            try:
                kinds = await self.refresh()
            except KubeApiError as error:
                logger.warning("cannot look up which APIs the cluster has: %s", error)
                continue
            for kind in kinds:
                logger.info("%s %s", kind, "is available now" if kind in self.kinds() else "is no longer available")
                changed(kind)

"""Notifies a reader of all objects of a selection: lists them once, then watches.

While the API server is unavailable, known objects are kept. A watch resumes where it ended; only if the API server
cannot resume it (410 Gone, or any other error), everything is listed again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import NamedTuple

from inflight_gateway.discovery.kube_api import KubeApi, KubeApiError, Manifest, Selection

logger = logging.getLogger(__name__)

FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.2, 5.0
"""Seconds between two calls that fail. Each wait has jitter, so that gateways do not reconnect all at once."""

SHORTEST_WATCH = 1.0
"""Minimum seconds from one watch to the next."""

WARN_SECONDS = 60.0
"""Between two warnings about the same selection."""


class ObjectKey(NamedTuple):
    namespace: str
    name: str


Changes = Mapping[ObjectKey, Manifest | None]
"""Objects as they are now; None: deleted."""


class Reflector:
    """One selection's list and watch.

    Args:
        on_changes: called for each list as a whole, and for each event.

    Attributes:
        listed: a list has succeeded since this process started.
        problem: why the last call failed; empty after a success.
        status: HTTP status of that failure, 0 without one.
    """

    def __init__(self, api: KubeApi, selection: Selection, on_changes: Callable[[Changes], None]) -> None:
        self.listed = False
        self.problem = ""
        self.status = 0
        self._api = api
        self._selection = selection
        self._on_changes = on_changes
        self._known: set[ObjectKey] = set()
        self._version = ""
        self._warned = float("-inf")

    @property
    def path(self) -> str:
        """Of the collection, with its selector."""
        return self._selection.query().removesuffix("?")

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            try:
                if not self._version:
                    await self._list()
                    failures = 0
                began = loop.time()
                await self._watch()
                failures = 0
                # The API server ends watches after a minute; a proxy that ends them at once must not cause a storm.
                await asyncio.sleep(max(0.0, SHORTEST_WATCH - (loop.time() - began)) * random.uniform(0.5, 1.0))
            except KubeApiError as error:
                failures += 1
                if error.status:
                    self._version = ""
                if error.status == 410 and failures == 1:
                    continue
                self._failed(str(error), error.status)
            except Exception as error:
                # An object that the reader fails on must not end the watch of all others; this is a gateway bug.
                logger.exception("reading %s failed", self.path)
                failures += 1
                self._version = ""
                self._failed(f"{self.path}: {type(error).__name__}: {error}", 0)
            else:
                continue
            wait = min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2 ** min(failures - 1, 10))
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _list(self) -> None:
        items, version = await self._api.list(self._selection)
        found = {_key(item): item for item in items}
        gone: dict[ObjectKey, Manifest | None] = dict.fromkeys(self._known - found.keys())
        self._known = set(found)
        self._version = version
        self.listed = True
        self._answered()
        self._on_changes({**gone, **found})

    async def _watch(self) -> None:
        async with aclosing(self._api.watch(self._selection, self._version)) as events:
            async for event in events:
                self._answered()
                self._version = event.version
                if event.type in ("OPEN", "BOOKMARK"):
                    continue
                key = _key(event.object)
                if event.type == "DELETED":
                    self._known.discard(key)
                    self._on_changes({key: None})
                else:
                    self._known.add(key)
                    self._on_changes({key: event.object})

    def _answered(self) -> None:
        if self.problem:
            logger.info("%s: the API server answers again", self.path)
        self.problem, self.status = "", 0

    def _failed(self, problem: str, status: int) -> None:
        self.problem, self.status = problem, status
        now = asyncio.get_running_loop().time()
        if now - self._warned >= WARN_SECONDS:
            self._warned = now
            logger.warning("%s; what is known stays in force", problem)


def _key(manifest: Manifest) -> ObjectKey:
    return ObjectKey(manifest["metadata"]["namespace"], manifest["metadata"]["name"])

"""Notifies a reader of all objects of a selection: lists them page by page, then watches.

While the API server is unavailable, known objects are kept. A watch resumes where it ended. Everything is listed again
if the API server cannot resume it (410 Gone, or any other error), and after a silence: an API server whose etcd was
restored from a backup accepts a version that it never had, and reports nothing. Changes arrive in the order of the API
server, each deletion included. Objects are passed on as they arrive; only their names are kept.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing

from inflight_base.kube.changes import Changes, HistoryError
from inflight_base.kube.client import KubeApi
from inflight_base.kube.errors import KubeApiError
from inflight_base.kube.kinds import RESOURCES, Selection
from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ObjectKey, key_of

logger = logging.getLogger(__name__)

FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.2, 5.0
"""Seconds between two calls that fail. Each wait has jitter, so that processes do not reconnect all at once."""

SHORTEST_WATCH = 1.0
"""Minimum seconds from one watch to the next."""

SILENT_SECONDS = 90.0
"""Longest time without an event or bookmark after which a watch resumes. The API server sends a bookmark before it ends
a watch."""

WARN_SECONDS = 60.0
"""Seconds between two warnings about the same selection."""

ABSENT_SECONDS = 60.0
"""Seconds between two lists of an optional kind that the cluster does not have."""


class Reflector:
    """List and watch of a selection.

    Args:
        on_changes: called for each page of a list, and for each event.
        optional: the cluster may not have the kind, or not permit a list, which is no problem: there are no objects
            then, and the reflector lists again each minute.

    Attributes:
        listed: a list has succeeded since this process started, and the cluster still has the kind.
        problem: why the last call failed; empty after a success.
        status: HTTP status of that failure, 0 without one.
    """

    def __init__(
        self, api: KubeApi, selection: Selection, on_changes: Callable[[Changes], None], *, optional: bool = False
    ) -> None:
        self.selection = selection
        self.listed = False
        self.problem = ""
        self.status = 0
        self._api = api
        self._on_changes = on_changes
        self._optional = optional
        self._known: set[ObjectKey] = set()
        self._version = ""
        self._heard = 0.0
        self._warned = float("-inf")

    @property
    def path(self) -> str:
        """Path of the collection, with its selectors."""
        return self.selection.query()

    async def run(self) -> None:
        """Lists and watches until cancelled.

        Raises:
            HistoryError: raised by `on_changes`.
        """
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            try:
                if not self._version or began - self._heard > SILENT_SECONDS:
                    await self._list()
                    self._heard = began = loop.time()
                await self._watch()
                failures = 0
                # The API server ends watches after a minute; a proxy that ends them at once must not cause a storm.
                await asyncio.sleep(max(0.0, SHORTEST_WATCH - (loop.time() - began)) * random.uniform(0.5, 1.0))
                continue
            except KubeApiError as error:
                failures = 1 if loop.time() - began > LONGEST_BACK_OFF else failures + 1
                if error.status:
                    self._version = ""
                if error.status == 410 and failures == 1:
                    continue
                if self._optional and (error.status == 404 or (error.status == 403 and not self.listed)):
                    self._absent(error)
                    failures = 0
                    await asyncio.sleep(ABSENT_SECONDS * random.uniform(0.5, 1.0))
                    continue
                self._failed(str(error), error.status)
            except HistoryError:
                raise
            except Exception as error:
                # An object that the reader fails on must not end the watch of all others; this is a bug of the reader.
                logger.exception("reading %s failed", self.path)
                failures += 1
                self._version = ""
                self._failed(f"{self.path}: {type(error).__name__}: {error}", 0)
            wait = min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2 ** min(failures - 1, 10))
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _list(self) -> None:
        found: set[ObjectKey] = set()
        async with aclosing(self._api.pages(self.selection)) as pages:
            async for page in pages:
                if page.first:
                    found = set()
                objects: dict[ObjectKey, Manifest | None] = {key_of(item): item for item in page.items}
                found.update(objects)
                self._known.update(objects)
                gone = dict.fromkeys(self._known - found) if page.last else {}
                self._known.difference_update(gone)
                self._on_changes(Changes({**gone, **objects}, page.version, found if page.last else None))
        self._version = page.version
        self._answered()
        if not self.listed and self._optional:
            logger.info("%s: the cluster has this API", self.path)
        self.listed = True

    async def _watch(self) -> None:
        async with aclosing(self._api.watch(self.selection, self._version)) as events:
            async for event in events:
                self._answered()
                self._version = event.version
                if event.type == "OPEN":
                    continue
                self._heard = asyncio.get_running_loop().time()
                if event.type == "BOOKMARK":
                    continue
                key = key_of(event.object)
                if event.type == "DELETED":
                    self._known.discard(key)
                else:
                    self._known.add(key)
                self._on_changes(Changes({key: None if event.type == "DELETED" else event.object}, event.version))

    def _answered(self) -> None:
        if self.problem:
            logger.info("%s: the API server answers again", self.path)
        self.problem, self.status = "", 0

    def _absent(self, error: KubeApiError) -> None:
        """The cluster does not have the kind, or no longer, or this process may not list it."""
        if self.listed:
            logger.info("%s: the cluster no longer has this API", self.path)
        elif error.status == 403 != self.status:
            logger.warning("continuing without a list: %s", error)
        gone: dict[ObjectKey, Manifest | None] = dict.fromkeys(self._known)
        self._known, self.listed = set(), False
        self.problem, self.status = "", error.status
        self._on_changes(Changes(gone, ""))

    def _failed(self, problem: str, status: int) -> None:
        self.problem, self.status = problem, status
        now = asyncio.get_running_loop().time()
        if now - self._warned < WARN_SECONDS:
            return
        self._warned = now
        if self.listed:
            logger.warning("%s; what is known stays in force", problem)
        else:
            missing = f"{RESOURCES[self.selection.kind][0]} is not installed"
            logger.warning("waiting for the API server: %s", missing if status == 404 else problem)

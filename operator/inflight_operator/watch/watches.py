"""Lists that keep the cache correct where watches cannot.

When a watch was interrupted for too long (410 Gone), kopf lists the kind again and passes each object as an event of
type None. It does not report deletions in between. So such an event for a known object requests a list of its kind
here, and all kinds are listed periodically.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress

from inflight_base.kube.client import KubeApi
from inflight_base.kube.errors import KubeApiError
from inflight_base.kube.kinds import Selection
from inflight_base.manifest.names import KIND, SERVICE_LABEL
from inflight_operator.apply.kube import OPTIONAL_KINDS
from inflight_operator.observe.cache import ClusterCache, Listing
from inflight_operator.watch.available import AvailableApis
from inflight_operator.watch.handlers import WATCHED_KINDS

logger = logging.getLogger(__name__)

RELIST_SECONDS = 300.0
"""Between two lists of everything: maximum time that an object with a missed deletion stays in the cache."""

PAGE_SECONDS = 1.0
"""Between two pages of such a list, so that one of thousands of objects never delays rounds and the Lease; reading a
page takes some tens of milliseconds."""

SETTLE_SECONDS = 5.0
"""From the first request for a list of a kind to the list: kopf's own list of many objects takes seconds."""


class HistoryError(Exception):
    """The API server's resourceVersions went back, as when etcd is restored from a backup: the cache is invalid."""


class Lister:
    """Fills the cache with lists, one at a time.

    Args:
        namespaces: to list; empty lists all at once.
    """

    def __init__(self, api: KubeApi, cache: ClusterCache, apis: AvailableApis, namespaces: tuple[str, ...]) -> None:
        self._api = api
        self._cache = cache
        self._apis = apis
        self._scopes: tuple[str | None, ...] = namespaces or (None,)
        self._asked: set[str] = set()
        self._wake = asyncio.Event()

    def ask(self, kind: str) -> None:
        """Requests a list of a kind soon."""
        self._asked.add(kind)
        self._wake.set()

    async def list_all(self) -> None:
        """Lists every kind that is watched, and the optional ones that the cluster has.

        Raises:
            KubeApiError: the API server refused, or does not answer. An optional kind that is forbidden is left out.
            HistoryError: see there.
        """
        for kind in (*WATCHED_KINDS, *self._apis.kinds()):
            await self._list(kind, pause=0.0)

    async def run(self) -> None:
        """Lists requested kinds, and all kinds periodically; until cancelled.

        Raises:
            HistoryError: see there.
        """
        loop = asyncio.get_running_loop()
        everything = loop.time() + RELIST_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(everything):
                    await self._wake.wait()
                    await asyncio.sleep(SETTLE_SECONDS)
            kinds: Iterable[str] = tuple(self._asked)
            if loop.time() >= everything:
                everything = loop.time() + RELIST_SECONDS
                kinds = (*WATCHED_KINDS, *self._apis.kinds())
            self._wake.clear()
            for kind in kinds:
                try:
                    await self._list(kind, pause=PAGE_SECONDS)
                except KubeApiError as error:
                    logger.warning("cannot list what there is: %s", error)
                    self.ask(kind)

    async def _list(self, kind: str, *, pause: float) -> None:
        self._asked.discard(kind)
        for namespace in self._scopes:
            listing: Listing | None = None
            try:
                async for page in self._api.pages(Selection(kind, namespace, "" if kind == KIND else SERVICE_LABEL)):
                    if listing is None or page.first:
                        listing = self._cache.listing(kind, namespace, page.version)
                    if listing.outdated:
                        raise HistoryError(f"the list of {kind} is older than the one before")
                    if not page.first:
                        await asyncio.sleep(pause)
                    listing.add(page.items)
            except KubeApiError as error:
                if error.status == 404 and kind in OPTIONAL_KINDS:
                    self._cache.forget_kind(kind)
                    return
                if error.status == 403 and kind in OPTIONAL_KINDS:
                    logger.warning("continuing without a list of %s: %s", kind, error)
                    continue
                raise
            if listing is not None:
                listing.end()

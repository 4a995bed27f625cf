"""Watches that fill the cache: one reflector for each kind and namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from inflight_base.kube.changes import Changes
from inflight_base.kube.client import KubeApi
from inflight_base.kube.kinds import RESOURCES, Selection
from inflight_base.kube.reflector import Reflector
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import KIND, SERVICE_LABEL
from inflight_operator.observe.cache import POD, ClusterCache
from inflight_operator.render.service_children import CHILD_KINDS

OPTIONAL_KINDS = ("PodMonitor", "InferencePool")
"""Kinds a cluster may not have. They may be installed or removed at any time."""

WATCHED_KINDS = (KIND, POD, *(kind for kind in CHILD_KINDS if kind not in (KIND, "Secret", *OPTIONAL_KINDS)))
"""Kinds that every cluster has. Secrets are written and never read."""

POLL_SECONDS = 0.1


def optional_kinds(*, endpoint_picker: bool) -> tuple[str, ...]:
    """Optional kinds that the operator may use: the chart gives it rights to InferencePools only where the gateway's
    pods serve other gateways."""
    return tuple(kind for kind in OPTIONAL_KINDS if kind != "InferencePool" or endpoint_picker)


class Watches:
    """Args:
    enqueue: called with each service that needs a round because of a change.
    namespaces: to watch; empty watches all at once.
    optional: optional kinds that the operator may use.
    """

    def __init__(
        self,
        api: KubeApi,
        cache: ClusterCache,
        enqueue: Callable[[ServiceKey], None],
        namespaces: Sequence[str] = (),
        optional: Sequence[str] = OPTIONAL_KINDS,
    ) -> None:
        self._api = api
        self._cache = cache
        self._enqueue = enqueue
        self._reflectors = [
            self._reflector(kind, scope) for kind in (*WATCHED_KINDS, *optional) for scope in namespaces or (None,)
        ]

    @property
    def available(self) -> frozenset[str]:
        """The optional APIs that the cluster has and the operator may list, as `GROUP/VERSION/KIND`. One whose first
        list fails in another way (429, 503, no answer) counts too: else children of services would be deleted
        meanwhile."""
        found = (one.selection.kind for one in self._reflectors if one.listed or one.problem)
        return frozenset(f"{RESOURCES[kind][0]}/{kind}" for kind in found if kind in OPTIONAL_KINDS)

    async def run(self) -> None:
        """Watches until cancelled.

        Raises:
            HistoryError: the history of the API server went back; in a group.
        """
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())

    async def listed(self, kinds: Sequence[str] = (*WATCHED_KINDS, *OPTIONAL_KINDS)) -> None:
        """Returns once all objects of these kinds are in the cache. An optional kind does not block: one list of it is
        enough, also one that failed."""
        while True:
            if all(_is_settled(one) for one in self._reflectors if one.selection.kind in kinds):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def catch_up(self) -> None:
        """Reads what the previous leader wrote last, which may still be on its way to the watches.

        Raises:
            KubeApiError: the API server refused, or does not answer.
        """
        for selection in (one.selection for one in self._reflectors):
            if selection.kind in (KIND, "Deployment"):
                async for page in self._api.pages(selection):
                    for body in page.items:
                        self._cache.put(selection.kind, body)

    def _reflector(self, kind: str, namespace: str | None) -> Reflector:
        def changed(changes: Changes) -> None:
            for key in self._cache.take(kind, namespace, changes):
                self._enqueue(key)

        selection = Selection(kind, namespace, "" if kind == KIND else SERVICE_LABEL)
        return Reflector(self._api, selection, changed, optional=kind in OPTIONAL_KINDS)


def _is_settled(reflector: Reflector) -> bool:
    looked_for = reflector.selection.kind in OPTIONAL_KINDS and (reflector.status != 0 or reflector.problem != "")
    return looked_for or (reflector.listed and not reflector.problem)

"""kopf handlers: each puts what a watch told into the cache and says which service needs a look, nothing more.

Only `on.event` handlers: they need no finalizer, keep no state in annotations, and never write to the cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import kopf

from inflight_operator.api.types import KIND
from inflight_operator.apply.kube import OPTIONAL_KINDS, RESOURCES
from inflight_operator.observe.cache import ClusterCache, ServiceKey
from inflight_operator.render.labels import SERVICE_LABEL
from inflight_operator.render.service_children import CHILD_KINDS

LookAt = Callable[[ServiceKey], Awaitable[None]]
Connect = Callable[[], Awaitable[kopf.ConnectionInfo]]
Stop = Callable[[], Awaitable[None]]


def watched_kinds(available_apis: frozenset[str]) -> tuple[str, ...]:
    """Kinds to watch: services, pods, and every kind of child that the cluster has."""
    have = {api.rpartition("/")[2] for api in available_apis}
    return (KIND, "Pod", *(kind for kind in CHILD_KINDS if kind not in OPTIONAL_KINDS or kind in have))


def build_registry(
    kinds: tuple[str, ...], cache: ClusterCache, look_at: LookAt, connect: Connect, stop: Stop
) -> kopf.OperatorRegistry:
    """A registry with one event handler for each kind.

    Args:
        connect: gives kopf fresh credentials.
        stop: awaited when kopf is told to end (SIGTERM, SIGINT), before it cancels what still runs.
    """
    registry = kopf.OperatorRegistry()

    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure_kopf(settings, kinds)

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connect()

    async def cleanup(**_: Any) -> None:
        await stop()

    kopf.on.startup(registry=registry)(configure)
    kopf.on.login(registry=registry)(login)
    kopf.on.cleanup(registry=registry)(cleanup)
    for kind in kinds:
        _watch(registry, kind, cache, look_at)
    return registry


def configure_kopf(settings: kopf.OperatorSettings, kinds: tuple[str, ...]) -> None:
    """Watching only: no events of kopf's own, no scanning for kinds that come and go, server-side label filters."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.queueing.exit_timeout = 0.5
    settings.process.ultimate_exiting_timeout = 10
    for kind in kinds:
        if kind != KIND:
            settings.watching.label_selectors[_selector(kind)] = SERVICE_LABEL


def _watch(registry: kopf.OperatorRegistry, kind: str, cache: ClusterCache, look_at: LookAt) -> None:
    group, version, plural = _selector(kind)

    async def told(type: str | None, body: Mapping[str, Any], **_: Any) -> None:
        key = cache.remove(kind, body) if type == "DELETED" else cache.put(kind, body)
        if key is not None:
            await look_at(key)

    kopf.on.event(group, version, plural, id=kind, registry=registry)(told)


def _selector(kind: str) -> tuple[str, str, str]:
    api_version, plural = RESOURCES[kind]
    group, _, version = api_version.rpartition("/")
    return group, version, plural

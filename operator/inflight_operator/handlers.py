"""kopf handlers: each puts what a watch told into the cache and says which service needs a look, nothing more.

Only `on.event` handlers: they need no finalizer, keep no state in annotations, and never write to the cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import kopf

from inflight_operator.api.types import KIND
from inflight_operator.apply.kube import RESOURCES
from inflight_operator.observe.cache import SERVICE_LABEL, ClusterCache, ServiceKey
from inflight_operator.render.service_children import CHILD_KINDS

LookAt = Callable[[ServiceKey], Awaitable[None]]


def watched_kinds(available_apis: frozenset[str]) -> tuple[str, ...]:
    """Kinds to watch: services, pods, and every kind of child that the cluster has."""
    optional = {"PodMonitor"}
    have = {api.rpartition("/")[2] for api in available_apis}
    return (KIND, "Pod", *(kind for kind in CHILD_KINDS if kind not in optional or kind in have))


def build_registry(
    kinds: tuple[str, ...], cache: ClusterCache, look_at: LookAt, connection: kopf.ConnectionInfo
) -> kopf.OperatorRegistry:
    """A registry with one event handler for each kind."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure_kopf(settings, kinds)

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return connection

    for kind in kinds:
        _watch(registry, kind, cache, look_at)
    return registry


def configure_kopf(settings: kopf.OperatorSettings, kinds: tuple[str, ...]) -> None:
    """Watching only: no events of kopf's own, no scanning for kinds that come and go, server-side label filters."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = 10
    for kind in kinds:
        if kind != KIND:
            settings.watching.label_selectors[_selector(kind)] = SERVICE_LABEL


def _watch(registry: kopf.OperatorRegistry, kind: str, cache: ClusterCache, look_at: LookAt) -> None:
    group, version, plural = _selector(kind)

    @kopf.on.event(group, version, plural, id=kind, registry=registry)
    async def told(type: str | None, body: Mapping[str, Any], logger: logging.Logger, **_: Any) -> None:
        key = cache.remove(kind, body) if type == "DELETED" else cache.put(kind, body)
        if key is not None:
            await look_at(key)


def _selector(kind: str) -> tuple[str, str, str]:
    api_version, plural = RESOURCES[kind]
    group, _, version = api_version.rpartition("/")
    return group, version, plural

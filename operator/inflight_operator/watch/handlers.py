"""kopf handlers: each puts a watch event into the cache and reports the service that needs a round.

Only `on.event` handlers: they need no finalizer, keep no state in annotations, and never write to the cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import kopf
from kubernetes.aio import client

from inflight_base.kube.client import PAGE
from inflight_base.kube.kinds import RESOURCES
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import KIND, SERVICE_LABEL
from inflight_operator.apply.kube import OPTIONAL_KINDS
from inflight_operator.observe.cache import ENDPOINTS, POD, ClusterCache
from inflight_operator.render.service_children import CHILD_KINDS

LookAt = Callable[[ServiceKey], Awaitable[None]]
Connect = Callable[[], Awaitable[kopf.ConnectionInfo]]
Stop = Callable[[], Awaitable[None]]


IDLE_SECONDS = 0.2
"""How long kopf keeps an object's task after its last event."""

_ELSEWHERE = ("Secret", ENDPOINTS, *OPTIONAL_KINDS)

WATCHED_KINDS = (KIND, POD, ENDPOINTS, *(kind for kind in CHILD_KINDS if kind not in _ELSEWHERE))
"""Kinds to watch. Secrets are written and never read. Optional kinds are listed periodically: kopf discovers kinds only
at its start, and removal of a kind would end it."""


def build_registry(
    cache: ClusterCache, look_at: LookAt, relist: Callable[[str], None], connect: Connect, stop: Stop
) -> kopf.OperatorRegistry:
    """A registry with one event handler for each watched kind.

    Args:
        look_at: called with each service that needs a round because of an event.
        relist: called with a kind that kopf listed again; such a list does not report deletions.
        connect: gives kopf fresh credentials.
        stop: awaited when kopf shuts down (SIGTERM, SIGINT), before it cancels running tasks.
    """
    registry = kopf.OperatorRegistry()

    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure_kopf(settings)

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connect()

    async def cleanup(**_: Any) -> None:
        await stop()

    kopf.on.startup(registry=registry)(configure)
    kopf.on.login(registry=registry)(login)
    kopf.on.cleanup(registry=registry)(cleanup)
    for kind in WATCHED_KINDS:
        _watch(registry, kind, cache, look_at, relist)
    return registry


class NoEssence(kopf.DiffBaseStorage):  # type: ignore[misc]
    """Disables comparison of an object with its state at the last event: only change handlers need it, and kopf copies
    the whole object at each event for it."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> dict[str, Any]:
        return {}

    def fetch(self, *, body: kopf.Body) -> None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: Any) -> None:
        """Nothing is stored."""


def configure_kopf(settings: kopf.OperatorSettings) -> None:
    """Watching only: no events of kopf's own, no scanning for added or removed kinds, server-side label filters, lists
    in pages. kopf has a task for each object that changes; it ends soon after, so that thousands of tasks do not
    accumulate."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.queueing.exit_timeout = 0.5
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.watching.chunk_size = PAGE
    settings.persistence.diffbase_storage = NoEssence()
    settings.process.ultimate_exiting_timeout = 10
    for kind in WATCHED_KINDS:
        if kind != KIND:
            settings.watching.label_selectors[_selector(kind)] = SERVICE_LABEL


def _watch(
    registry: kopf.OperatorRegistry, kind: str, cache: ClusterCache, look_at: LookAt, relist: Callable[[str], None]
) -> None:
    group, version, plural = _selector(kind)

    async def told(type: str | None, body: Mapping[str, Any], memo: kopf.Memo, **_: Any) -> None:
        """`type` is None for an object of a list; `memo` is kopf's own for each object, kept until it is deleted."""
        if type is None and "known" in memo:
            relist(kind)
        memo["known"] = True
        key = cache.remove(kind, body) if type == "DELETED" else cache.put(kind, body)
        if key is not None:
            await look_at(key)

    kopf.on.event(group, version, plural, id=kind, registry=registry)(told)


def _selector(kind: str) -> tuple[str, str, str]:
    api_version, plural = RESOURCES[kind]
    group, _, version = api_version.rpartition("/")
    return group, version, plural


async def kopf_connection(configuration: client.Configuration) -> kopf.ConnectionInfo:
    """The connection for kopf. It is called again when the API server answers 401: service account tokens run out."""
    header = await configuration.get_api_key_with_prefix("BearerToken")
    scheme, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        username=configuration.username or None,
        password=configuration.password or None,
        scheme=scheme or None,
        token=token.strip() or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )

"""kopf handlers of InferenceServices: they request a round for a service that changes.

Only `on.event` handlers: they need no finalizer, keep no state in annotations, and never write to the cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import kopf
from kubernetes.aio import client

from inflight_base.kube.client import PAGE
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import GROUP, KIND, PLURAL, VERSION
from inflight_operator.observe.cache import ClusterCache

Connect = Callable[[], Awaitable[kopf.ConnectionInfo]]
Stop = Callable[[], Awaitable[None]]

IDLE_SECONDS = 0.2
"""Seconds for which kopf keeps an object's task after its last event."""


class _NoDiffBase(kopf.DiffBaseStorage):  # type: ignore[misc]  # no types
    """No copies and differences of objects: `on.event` handlers get none."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        pass


def build_registry(
    cache: ClusterCache, enqueue: Callable[[ServiceKey], None], connect: Connect, stop: Stop
) -> kopf.OperatorRegistry:
    """A registry with the event handler of InferenceServices.

    Args:
        enqueue: called with each service that needs a round because of an event.
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

    async def changed(type: str | None, body: Mapping[str, Any], **_: Any) -> None:
        """`type` is None for an object of a list. kopf does not report what was deleted before a new list: the watches
        of the cache do."""
        key = cache.put(KIND, body) if type != "DELETED" else None
        if key is not None:
            enqueue(key)

    kopf.on.startup(registry=registry)(configure)
    kopf.on.login(registry=registry)(login)
    kopf.on.cleanup(registry=registry)(cleanup)
    kopf.on.event(GROUP, VERSION, PLURAL, id=KIND, registry=registry)(changed)
    return registry


def configure_kopf(settings: kopf.OperatorSettings) -> None:
    """Watching only: no events of kopf's own, no scanning for added or removed kinds, no differences to an object's
    last state, lists in pages. kopf has a task for each object that changes; it ends soon after, so that thousands of
    tasks do not accumulate."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.queueing.exit_timeout = 0.5
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.watching.chunk_size = PAGE
    settings.process.ultimate_exiting_timeout = 10


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

"""The catalog's content from the Kubernetes API: services, their engines, and the Secrets that they name."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from inflight_base.kube.changes import Changes
from inflight_base.kube.client import KubeApi
from inflight_base.kube.kinds import Selection
from inflight_base.kube.reflector import Reflector
from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_base.manifest.names import SERVICE_LABEL, SLICE_OF_LABEL
from inflight_gateway.discovery.catalog import Catalog, Change, SecretData
from inflight_gateway.discovery.service_config import ServiceConfigError, read_service
from inflight_gateway.discovery.slices import Slices, all_addresses
from inflight_gateway.types import ServiceConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayPods:
    """Location of the other pods of this gateway.

    Attributes:
        namespace, service: the gateway's own Service.
        pod: name of this pod, which is excluded from the peers.
        port: port of their state streams.
    """

    namespace: str
    service: str
    pod: str
    port: int = 9003


class KubeDiscovery:
    """Fills the catalog while it runs.

    While the API server is unavailable, the catalog keeps its content. A gateway that starts during that time has no
    content, and reports this in `unready`.

    Args:
        namespaces: namespaces to watch; empty: all of them.
        pods: see `GatewayPods`; None: no peers.
        on_peers: called with the addresses of all peers whenever they change.
    """

    def __init__(
        self,
        api: KubeApi,
        catalog: Catalog,
        namespaces: Collection[str] = (),
        pods: GatewayPods | None = None,
        on_peers: Callable[[Collection[str]], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._catalog = catalog
        self._slices = Slices()
        self._served = catalog.services
        self._not_behind: dict[ServiceKey, Manifest] = {}
        """InferenceServices that do not ask for the gateway."""
        self._notes: dict[ObjectKey, tuple[str, ...]] = {}
        self._secrets: dict[ObjectKey, tuple[Reflector, asyncio.Task[None]]] = {}
        self._pods = pods
        self._on_peers = on_peers
        self._peers: dict[ObjectKey, set[str]] = {}
        self._complete = False
        scopes: list[str | None] = [*sorted(namespaces)] or [None]
        self._services = [
            Reflector(api, Selection("InferenceService", scope), self._services_changed) for scope in scopes
        ]
        self._engines = [
            Reflector(api, Selection("EndpointSlice", scope, labels=SERVICE_LABEL), self._slices_changed)
            for scope in scopes
        ]

    async def run(self) -> None:
        """Watches until cancelled."""
        unsubscribe = self._catalog.subscribe(self._follow_secrets)
        try:
            async with asyncio.TaskGroup() as tasks:
                for reflector in (*self._services, *self._engines, *self._peer_reflectors()):
                    tasks.create_task(reflector.run())
        finally:
            unsubscribe()
            for _, task in self._secrets.values():
                task.cancel()

    def unready(self) -> list[str]:
        """Returns why this gateway has no services yet; empty once it has them, even if the API server becomes
        unavailable later. An unreadable Secret blocks only its own services."""
        if not self._complete:
            waiting = [reflector for reflector in (*self._services, *self._engines) if not reflector.listed]
            waiting += [one for one, _ in self._secrets.values() if not (one.listed or one.status)]
            if waiting:
                return [one.problem or f"{one.path} has not been listed yet" for one in waiting]
            self._complete = True
            self._catalog.update(complete=True)
        return []

    def problems(self) -> list[str]:
        """Returns the problems of lists and watches that fail now, whether this gateway is ready or not."""
        secrets = (reflector for reflector, _ in self._secrets.values())
        return [one.problem for one in (*self._services, *self._engines, *secrets) if one.problem]

    def _services_changed(self, changes: Changes) -> None:
        self._take({ServiceKey(*key): manifest for key, manifest in changes.objects.items()})

    def _take(self, manifests: Mapping[ServiceKey, Manifest | None]) -> None:
        services = {key: self._read(key, manifest) for key, manifest in manifests.items()}
        outside = {key: config is None and manifests[key] is not None for key, config in services.items()}
        self._catalog.update(services=services, outside=outside)

    def _read(self, key: ServiceKey, manifest: Manifest | None) -> ServiceConfig | None:
        config, notes = None, tuple[str, ...]()
        self._not_behind.pop(key, None)
        try:
            if manifest is not None:
                config, notes = read_service(manifest)
                if config is None:
                    self._not_behind[key] = manifest
                    config, notes = read_service(manifest, leaving=self._slices.has(key))
        except ServiceConfigError as error:
            notes = (f"{error}; the gateway does not serve it",)
        if notes != self._notes.pop(key, ()):
            for note in notes:
                logger.warning("InferenceService %s/%s: %s", *key, note)
        if notes:
            self._notes[key] = notes
        return config

    def _slices_changed(self, changes: Changes) -> None:
        touched = self._slices.take(changes.objects)
        self._catalog.update(endpoints=touched)
        # Services that left the gateway are served until the operator deletes the Service that lists their engines.
        changed = {key for key in touched.keys() & self._not_behind if self._slices.has(key) != (key in self._served)}
        self._take({key: self._not_behind[key] for key in changed})

    def _follow_secrets(self, change: Change) -> None:
        """Watches exactly the Secrets that services reference, one watch each."""
        if not change.services:
            return
        named = {
            ObjectKey(key.namespace, config.api_keys_secret)
            for key, config in self._catalog.services.items()
            if config.api_keys_secret is not None
        }
        unnamed = self._secrets.keys() - named
        for ref in unnamed:
            self._secrets.pop(ref)[1].cancel()
        for ref in named - self._secrets.keys():
            selection = Selection("Secret", ref.namespace, fields=f"metadata.name={ref.name}")
            reflector = Reflector(self._api, selection, self._secret_changed)
            self._secrets[ref] = (reflector, asyncio.create_task(reflector.run(), name=f"secret {ref}"))
        self._catalog.update(secrets=dict.fromkeys(unnamed))

    def _secret_changed(self, changes: Changes) -> None:
        self._catalog.update(
            secrets={key: None if secret is None else _data(secret) for key, secret in changes.objects.items()}
        )

    def _peer_reflectors(self) -> Iterable[Reflector]:
        if self._pods is not None:
            selection = Selection("EndpointSlice", self._pods.namespace, f"{SLICE_OF_LABEL}={self._pods.service}")
            pods = self._pods

            def changed(changes: Changes) -> None:
                for key, manifest in changes.objects.items():
                    self._peers.pop(key, None)
                    if manifest is not None:
                        self._peers[key] = all_addresses(manifest, pods.port, without_pod=pods.pod)
                self._on_peers(frozenset().union(*self._peers.values()))

            yield Reflector(self._api, selection, changed)


def _data(secret: Manifest) -> SecretData:
    return {name: b64decode(value) for name, value in (secret.get("data") or {}).items()}

"""The catalog's content from the Kubernetes API: services, their engines, and the Secrets that they name."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from inflight_base.kube.changes import Changes
from inflight_base.kube.client import KubeApi
from inflight_base.kube.kinds import Selection
from inflight_base.kube.reflector import Reflector
from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_base.manifest.names import DEFAULT_CLASS, SERVICE_LABEL, SLICE_OF_LABEL, class_of
from inflight_gateway.discovery.catalog import Catalog, Change, SecretData
from inflight_gateway.discovery.service_config import ServiceConfigError, read_service
from inflight_gateway.discovery.slices import Slices, gateway_pods
from inflight_gateway.types import GatewayPod, ServiceConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayPods:
    """Location of the gateway's pods. Attributes: namespace, service: their headless Service. port: port for streams of
    relays."""

    namespace: str
    service: str
    port: int


class KubeDiscovery:
    """Fills the catalog while it runs.

    While the API server is unavailable, the catalog keeps its content. A gateway that starts during that time has no
    content, and reports this in `unready`.

    Args:
        namespaces: namespaces to watch; empty: all of them.
        pods: see `GatewayPods`; None: this pod is the only one.
        on_pods: called with the ready gateway pods, this one too if it is, whenever they change.
        class_name: class of the services; others do not exist here.
    """

    def __init__(
        self,
        api: KubeApi,
        catalog: Catalog,
        namespaces: Collection[str] = (),
        pods: GatewayPods | None = None,
        on_pods: Callable[[Collection[GatewayPod]], None] = lambda _: None,
        class_name: str = DEFAULT_CLASS,
    ) -> None:
        self._class = class_name
        self._api = api
        self._catalog = catalog
        self._slices = Slices()
        self._served = catalog.services
        self._not_behind: dict[ServiceKey, Manifest] = {}
        """InferenceServices that do not ask for the gateway."""
        self._notes: dict[ObjectKey, tuple[str, ...]] = {}
        self._secrets: dict[ObjectKey, tuple[Reflector, asyncio.Task[None]]] = {}
        self._complete = False
        scopes: list[str | None] = [*sorted(namespaces)] or [None]
        self._services = [
            Reflector(api, Selection("InferenceService", scope), self._services_changed) for scope in scopes
        ]
        self._engines = [
            Reflector(api, Selection("EndpointSlice", scope, labels=SERVICE_LABEL), self._slices_changed)
            for scope in scopes
        ]
        self._gateway = [] if pods is None else [_gateway_reflector(api, pods, on_pods)]

    async def run(self) -> None:
        """Watches until cancelled."""
        unsubscribe = self._catalog.subscribe(self._follow_secrets)
        try:
            async with asyncio.TaskGroup() as tasks:
                for reflector in (*self._services, *self._engines, *self._gateway):
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
            secrets = (one for one, _ in self._secrets.values())
            waiting += [one for one in (*secrets, *self._gateway) if not (one.listed or one.status)]
            if waiting:
                return [one.problem or f"{one.path} has not been listed yet" for one in waiting]
            self._complete = True
            self._catalog.update(complete=True)
        return []

    def problems(self) -> list[str]:
        """Returns the problems of lists and watches that fail now, whether this gateway is ready or not."""
        secrets = (reflector for reflector, _ in self._secrets.values())
        return [one.problem for one in (*self._services, *self._engines, *self._gateway, *secrets) if one.problem]

    def _services_changed(self, changes: Changes) -> None:
        self._take(
            {
                ServiceKey(*key): None if manifest is None or class_of(manifest) != self._class else manifest
                for key, manifest in changes.objects.items()
            }
        )

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


def _gateway_reflector(api: KubeApi, pods: GatewayPods, on_pods: Callable[[Collection[GatewayPod]], None]) -> Reflector:
    slices: dict[ObjectKey, Manifest] = {}

    def changed(changes: Changes) -> None:
        for key, manifest in changes.objects.items():
            slices.pop(key, None)
            if manifest is not None:
                slices[key] = manifest
        on_pods(gateway_pods(slices.values(), pods.port))

    return Reflector(api, Selection("EndpointSlice", pods.namespace, f"{SLICE_OF_LABEL}={pods.service}"), changed)


def _data(secret: Manifest) -> SecretData:
    return {name: b64decode(value) for name, value in (secret.get("data") or {}).items()}

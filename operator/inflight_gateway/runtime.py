"""The picker process: all of its parts in one event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from inflight_gateway.discovery.static import StaticDiscovery
from inflight_gateway.ext_proc import grpc_server
from inflight_gateway.proxy.drain import drain
from inflight_gateway.proxy.snapshot import LISTENERS, ROUTES
from inflight_gateway.settings import PickerSettings, Sockets
from inflight_gateway.telemetry import reports
from inflight_gateway.wiring import Gateway

_log = logging.getLogger(__name__)

_TICK_S = 0.1
"""Seconds between two checks for expired holds: most by which a hold ends late."""


class StartError(Exception):
    """Service discovery cannot start; the message says what to do."""


class _Discovery(Protocol):
    async def run(self) -> None: ...

    def unready(self) -> list[str]: ...

    def problems(self) -> list[str]: ...


async def run_picker(settings: PickerSettings, stop: asyncio.Event) -> None:
    """Runs until `stop` is set, then drains.

    Raises:
        OSError: a listen socket or port is unavailable, or a file cannot be read.
        StaticFileError, StartError: service discovery cannot start.
    """
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(Gateway.open(settings))
        discovery = await stack.enter_async_context(_discovery(settings, gateway))
        process = _Process(settings, gateway, discovery)
        try:
            await process.run(stop)
        finally:
            await process.close()


@asynccontextmanager
async def _discovery(settings: PickerSettings, gateway: Gateway) -> AsyncIterator[_Discovery]:
    if settings.static is not None:
        yield StaticDiscovery(settings.static, gateway.catalog, gateway.keep_peers)
        return
    # Importing the Kubernetes client takes a second and 50 MiB, which a static file does not need.
    from kubernetes.aio import client

    from inflight_base.kube.client import KubeApi
    from inflight_base.kube.connect import ConnectError, load_configuration
    from inflight_gateway.discovery.kube import GatewayPods, KubeDiscovery

    pods = None
    if settings.peers:
        namespace, _, service = settings.peers.partition("/")
        pods = GatewayPods(namespace, service, settings.name, settings.http_port)
    try:
        configuration = await load_configuration(settings.kubeconfig, " or --static FILE")
    except ConnectError as error:
        raise StartError(str(error)) from error
    async with client.ApiClient(configuration) as api:
        yield KubeDiscovery(KubeApi(api), gateway.catalog, settings.namespaces, pods, gateway.keep_peers)


class _Process:
    def __init__(self, settings: PickerSettings, gateway: Gateway, discovery: _Discovery) -> None:
        self._settings = settings
        self._gateway = gateway
        self._discovery = discovery
        self._known = asyncio.Event()
        self._draining = False
        self._serving = False
        self._closing = AsyncExitStack()

    async def run(self, stop: asyncio.Event) -> None:
        settings = self._settings
        port = self._gateway.state_port(self._unready, self._discovery.problems)
        self._closing.push_async_callback(port.close)
        numbers = await port.start(settings.http_port, settings.local_port)
        _log.info("metrics, health and signed state on port %d, state and picks on loopback port %d", *numbers)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one) for one in (self._discovery.run(), self._tick(), self._gateway.run())]
            serving = tasks.create_task(self._serve())
            await stop.wait()
            await self._drain()
            for task in (*running, serving):
                task.cancel()

    async def close(self) -> None:
        await self._closing.aclose()

    async def _serve(self) -> None:
        """Opens the sockets once the services are known: an empty configuration would replace the one that Envoy has
        from the previous picker."""
        await self._known.wait()
        sockets, gateway = self._settings.sockets, self._gateway
        _make_room(sockets)
        runner = await reports.serve(sockets.reports, gateway.records.report, gateway.retried)
        self._closing.push_async_callback(runner.cleanup)
        server = await grpc_server.serve(sockets.picker, gateway.publisher.ads, gateway.processor)
        self._closing.push_async_callback(server.stop, 0.0)
        if gateway.endpoint_picker is not None:
            self._closing.push_async_callback(gateway.endpoint_picker.close)
            await gateway.endpoint_picker.open()
        gc.freeze()  # what was imported stays: looking through it for garbage would pause all requests
        self._serving = True
        _log.info("%d services; Envoy may connect at %s", len(gateway.catalog.services), sockets.picker)
        if gateway.endpoint_picker is not None:
            await gateway.endpoint_picker.run()

    async def _tick(self) -> None:
        while True:
            self._gateway.tick()
            if not self._known.is_set() and not self._discovery.unready():
                self._known.set()
            await asyncio.sleep(_TICK_S)

    async def _drain(self) -> None:
        if not self._serving:
            return
        self._draining = True
        _log.info("drains: no longer ready, running requests end")
        settings, endpoint_picker = self._settings, self._gateway.endpoint_picker
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(drain(settings.sockets.admin, settings.drain_min_s, settings.drain_max_s))
            if endpoint_picker is not None:
                tasks.create_task(endpoint_picker.drain(settings.drain_min_s, settings.drain_max_s))

    def _unready(self) -> list[str]:
        if self._draining:
            return ["the gateway drains"]
        reasons = list(self._discovery.unready())
        ads: Collection[str] = (LISTENERS, ROUTES)
        missing = [one for one in ads if not self._gateway.publisher.ads.acknowledged(one)]
        if missing:
            reasons.append("Envoy is not connected, or has not taken its configuration yet")
        return reasons


def _make_room(sockets: Sockets) -> None:
    """Removes the stale sockets of a killed picker."""
    sockets.run_dir.mkdir(parents=True, exist_ok=True)
    for socket in (sockets.picker, sockets.reports):
        socket.unlink(missing_ok=True)

"""The picker process: all of its parts in one event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from inflight_gateway.discovery.static import StaticDiscovery
from inflight_gateway.proxy.drain import Admin, drain
from inflight_gateway.settings import LINK_PORT, PickerSettings
from inflight_gateway.wiring import Gateway

_log = logging.getLogger(__name__)

_TICK_S = 0.1
"""Seconds between two checks for expired holds: most by which a hold ends late."""


_ENVOY_S = 0.5
"""Seconds between two checks of Envoy."""


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
        yield StaticDiscovery(settings.static, gateway.catalog, gateway.set_pods)
        return
    # Importing the Kubernetes client takes a second and 50 MiB, which a static file does not need.
    from kubernetes.aio import client

    from inflight_base.kube.client import KubeApi
    from inflight_base.kube.connect import ConnectError, load_configuration
    from inflight_gateway.discovery.kube import GatewayPods, KubeDiscovery

    pods = None
    if settings.peers:
        namespace, _, service = settings.peers.partition("/")
        pods = GatewayPods(namespace, service, settings.link_port or LINK_PORT)
    try:
        configuration = await load_configuration(settings.kubeconfig, " or --static FILE")
    except ConnectError as error:
        raise StartError(str(error)) from error
    async with client.ApiClient(configuration) as api:
        yield KubeDiscovery(
            KubeApi(api), gateway.catalog, settings.namespaces, pods, gateway.set_pods, settings.class_name
        )


class _Process:
    def __init__(self, settings: PickerSettings, gateway: Gateway, discovery: _Discovery) -> None:
        self._settings = settings
        self._gateway = gateway
        self._discovery = discovery
        self._known = asyncio.Event()
        self._draining = False
        self._serving = False
        self._envoy_ready = False
        self._closing = AsyncExitStack()

    async def run(self, stop: asyncio.Event) -> None:
        settings = self._settings
        port = self._gateway.state_port(self._unready, self._discovery.problems)
        self._closing.push_async_callback(port.close)
        numbers = await port.start(settings.http_port, settings.local_port)
        _log.info("metrics, health and signed state on port %d, state and picks on loopback port %d", *numbers)
        async with asyncio.TaskGroup() as tasks:
            always = self._discovery.run(), self._tick(), self._watch_envoy()
            running = [tasks.create_task(one) for one in always]
            serving = tasks.create_task(self._serve())
            await stop.wait()
            await self._drain()
            for task in (*running, serving):
                task.cancel()

    async def close(self) -> None:
        await self._closing.aclose()

    async def _serve(self) -> None:
        """Opens the sockets once the services are known: relays keep those of the previous picker until then."""
        await self._known.wait()
        socket, gateway = self._settings.sockets.picker, self._gateway
        self._closing.push_async_callback(gateway.links.close)
        if self._settings.link_port is not None:
            port = await gateway.links.listen(None, self._settings.link_port)
            _log.info("relays of other gateway pods may connect at port %d", port)
        await gateway.links.serve(socket)
        if gateway.guests is not None:
            self._closing.push_async_callback(gateway.guests.close)
            await gateway.guests.open()
        gc.freeze()  # what was imported stays: looking through it for garbage would pause all requests
        self._serving = True
        _log.info("%d services; relays may connect at %s", len(gateway.catalog.services), socket)
        if gateway.guests is not None:
            await gateway.guests.run()

    async def _watch_envoy(self) -> None:
        async with Admin(self._settings.sockets.admin) as admin:
            while True:
                self._envoy_ready = await admin.ready()
                await asyncio.sleep(_ENVOY_S)

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
        self._gateway.drain()
        _log.info("drains: no longer ready, running requests end")
        settings, guests = self._settings, self._gateway.guests
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(drain(settings.sockets.admin, settings.drain_min_s, settings.drain_max_s))
            if guests is not None:
                tasks.create_task(guests.drain(settings.drain_min_s, settings.drain_max_s))

    def _unready(self) -> list[str]:
        if self._draining:
            return ["the gateway drains"]
        reasons = list(self._discovery.unready())
        if not self._gateway.links.ready:
            reasons.append("no relay is connected, or one has not read yet which services there are")
        if not self._envoy_ready:
            reasons.append("Envoy does not run, or is not ready")
        return reasons

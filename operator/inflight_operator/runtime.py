"""Puts the parts together: watches at once, acts as the leader, ends in order."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass

import httpx
import kopf
from kubernetes.aio import client

from inflight_operator.api.types import API_VERSION, KIND
from inflight_operator.apply import KubeApi
from inflight_operator.apply.kube import KubeApiError
from inflight_operator.connect import kopf_connection, load_configuration
from inflight_operator.engines import EngineClient
from inflight_operator.handlers import build_registry, watched_kinds
from inflight_operator.leader import Leadership
from inflight_operator.loop import Loop, LoopSettings
from inflight_operator.metrics import OperatorMetrics
from inflight_operator.observe.cache import ClusterCache
from inflight_operator.observe.scrape import Scraper
from inflight_operator.render import Settings
from inflight_operator.render.labels import SERVICE_LABEL
from inflight_operator.web import Heartbeat, WebServer
from inflight_operator.workers import Workers, WorkerSettings

logger = logging.getLogger(__name__)

RELIST_SECONDS = 300.0
"""A watch that was cut does not tell what was deleted meanwhile: list all again this often."""

RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """The command line.

    Attributes:
        kubeconfig: file; None takes the pod's service account.
        namespace: the only one to look at; None looks at all.
        leader_elect: act only while holding the Lease.
        lease_name: of that Lease.
        metrics_port: for /metrics and /healthz.
        engine_image: of services whose spec names none.
        interval: seconds between two looks at a service.
    """

    kubeconfig: str | None
    namespace: str | None
    leader_elect: bool
    lease_name: str
    metrics_port: int
    engine_image: str
    interval: float


async def run_operator(options: Options) -> int:
    """Runs until SIGTERM or SIGINT (returns 0), or until the Lease is lost (returns 1).

    Raises:
        ConnectError: there is no usable way to the API server.
        OSError: the metrics port is taken.
    """
    configuration = await load_configuration(options.kubeconfig)
    metrics, heartbeat = OperatorMetrics(), Heartbeat()
    web = WebServer(options.metrics_port, metrics.registry, heartbeat)
    beating = asyncio.create_task(_beat(heartbeat))
    try:
        async with client.ApiClient(configuration) as api_client, _engine_http() as http:
            api = KubeApi(api_client)
            await _wait_for_crd(api, options.namespace)
            available = await api.available_apis()
            kinds, cache = watched_kinds(available), ClusterCache()
            loop = Loop(
                api,
                cache,
                Scraper(http),
                EngineClient(http),
                metrics,
                Settings(engine_image=options.engine_image, available_apis=available),
                LoopSettings(interval=options.interval),
            )
            leadership = (
                Leadership(api_client, _lease_namespace(options), _identity(), options.lease_name)
                if options.leader_elect
                else None
            )
            workers = Workers(loop.reconcile, loop.services, metrics, WorkerSettings(interval=options.interval))
            actor = _Actor(_act(workers, api, cache, kinds, options, metrics, leadership), leadership)
            registry = build_registry(kinds, cache, workers.look_at, lambda: kopf_connection(configuration), actor.stop)
            watching = asyncio.create_task(
                kopf.operator(
                    registry=registry,
                    standalone=True,
                    clusterwide=options.namespace is None,
                    namespaces=[options.namespace] if options.namespace else [],
                )
            )
            try:
                await _first_to_end(watching, actor)
            finally:
                await actor.stop()  # also where a watch failed: the next one need not wait for the Lease to run out
            return actor.exit_code
    finally:
        beating.cancel()
        web.close()


class _Actor:
    """What runs beside the watches: the election and the loop. When either ends by itself, the process has to."""

    def __init__(self, act: Coroutine[None, None, None], leadership: Leadership | None) -> None:
        self.ended = asyncio.Event()
        self.exit_code = 0
        self._stopping = False
        self._tasks = [asyncio.create_task(act, name="loop")]
        if leadership is not None:
            self._tasks.append(asyncio.create_task(leadership.hold(), name="election"))
        for task in self._tasks:
            task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if self._stopping:
            return
        self.exit_code = 1
        if not task.cancelled() and task.exception() is not None:
            logger.error("the %s failed", task.get_name(), exc_info=task.exception())
        self._tasks[0].cancel()  # the loop: who lost the Lease must not act while the watches come to their end
        self.ended.set()

    async def stop(self) -> None:
        """Ends the loop, then gives the Lease back."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):  # failures were told by _on_done
                await task


async def _first_to_end(watching: asyncio.Task[None], actor: _Actor) -> None:
    """Returns when kopf ended (a signal), or ends it when the loop or the election ended.

    kopf's own stop flag would do, but leaves a task behind that it then waits for.
    """
    ended = asyncio.create_task(actor.ended.wait())
    try:
        await asyncio.wait({watching, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not watching.done():
            watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    finally:
        ended.cancel()


async def _act(
    workers: Workers,
    api: KubeApi,
    cache: ClusterCache,
    kinds: tuple[str, ...],
    options: Options,
    metrics: OperatorMetrics,
    leadership: Leadership | None,
) -> None:
    if leadership is not None:
        await leadership.acquired()
    metrics.leader.set(1)
    while True:
        if await _list_all(api, cache, kinds, options.namespace):
            break
        await asyncio.sleep(RETRY_SECONDS)
    logger.info("looking after %d services", len(cache.services()))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(workers.run())
        while True:
            await asyncio.sleep(RELIST_SECONDS)
            await _list_all(api, cache, kinds, options.namespace)


async def _list_all(api: KubeApi, cache: ClusterCache, kinds: tuple[str, ...], namespace: str | None) -> bool:
    """Fills the cache with everything there is; False when the API server did not let us."""
    cache.begin_listing()
    try:
        for kind in kinds:
            cache.replace(kind, await api.list(kind, namespace, None if kind == KIND else SERVICE_LABEL))
    except KubeApiError as error:
        logger.warning("cannot list what there is: %s", error)
        return False
    return True


async def _wait_for_crd(api: KubeApi, namespace: str | None) -> None:
    """Returns once the API server knows InferenceServices and lets us list them."""
    while True:
        try:
            await api.list(KIND, namespace)
            return
        except KubeApiError as error:
            hint = f"{API_VERSION} is not installed" if error.status == 404 else str(error)
            logger.warning("waiting for the API server: %s", hint)
            await asyncio.sleep(RETRY_SECONDS)


async def _beat(heartbeat: Heartbeat) -> None:
    while True:
        heartbeat.beat()
        await asyncio.sleep(1)


def _engine_http() -> httpx.AsyncClient:
    """One client for all engines. Pods are reached directly: proxies of the environment are for the world outside."""
    limits = httpx.Limits(max_connections=512, max_keepalive_connections=512)
    return httpx.AsyncClient(limits=limits, trust_env=False)


def _lease_namespace(options: Options) -> str:
    return os.environ.get("POD_NAMESPACE") or options.namespace or "default"


def _identity() -> str:
    return os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"

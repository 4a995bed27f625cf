"""The operator process: starts watches at once, acts as the leader, shuts down gracefully."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import kopf
from kubernetes.aio import client

from inflight_base.kube.changes import HistoryError
from inflight_base.kube.client import KubeApi
from inflight_base.kube.connect import load_configuration
from inflight_base.kube.errors import KubeApiError
from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import DEFAULT_CLASS, KIND
from inflight_base.manifest.units import Share
from inflight_operator import memory
from inflight_operator.apply.engines import EngineClient, LimitsPusher
from inflight_operator.apply.kube import OperatorApi
from inflight_operator.clock import Clock
from inflight_operator.keys import LiveAdminKey, UnusableKeyError
from inflight_operator.leader import Leadership, LeaseLostError
from inflight_operator.loop_thread import LoopThread
from inflight_operator.observe.cache import ClusterCache
from inflight_operator.observe.live_gateway import LiveGateway
from inflight_operator.observe.scrape import ScrapePool
from inflight_operator.pacing import Stretch
from inflight_operator.reconcile.reconciler import Reconciler, ReconcilerSettings
from inflight_operator.reconcile.upgrades import SERVICES_AT_ONCE, STUCK_SERVICES, UpgradeMode, UpgradePace
from inflight_operator.recording.recorder import DEFAULT_MEBIBYTES, MEBIBYTE, DecisionRecorder
from inflight_operator.render.plan import VLLM_IMAGE, EngineObservability, ModelCache, Settings
from inflight_operator.telemetry.access import Access, reviewer
from inflight_operator.telemetry.metrics import OperatorMetrics
from inflight_operator.telemetry.web import Heartbeat, WebServer
from inflight_operator.watch.handlers import build_registry, kopf_connection
from inflight_operator.watch.watches import Watches, optional_kinds
from inflight_operator.workers import Workers, WorkerSettings

logger = logging.getLogger(__name__)

RETRY_SECONDS = 2.0

TIDY_SECONDS = 60.0
"""Seconds between two returns of free memory, which take some milliseconds."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line.

    Attributes:
        kubeconfig: file; None takes the pod's service account.
        namespaces: to watch; empty watches all.
        class_name: class of the services to act on.
        leader_elect: act only while holding the Lease.
        lease_name: name of the Lease.
        key_secret: name of the Secret with the key of the engines' admin tokens.
        gateway_service: full DNS name of the gateway's Service; empty without a gateway.
        endpoint_picker: whether the gateway's pods serve other gateways as their endpoint picker.
        metrics_port: for /metrics and /healthz.
        metrics_authentication: only clients whose account may get /metrics read them.
        engine_image: image of services whose spec names none.
        vllm_image: image of services of type vllm whose spec names none.
        plugin_image: this program's own image; empty if it does not run in a container.
        engine_pull_policy: pull policy of all engine pods; empty takes the default of Kubernetes.
        interval: seconds between two rounds of a service, and between two scrapes of a pod.
        admin_peers: NetworkPolicyPeers that may reach the engines' admin port beside the operator.
        client_peers: NetworkPolicyPeers that may reach the serving port of services that name no clients; empty: the
            pods of their namespace.
        upgrade: mode of engine upgrades.
        upgrades_at_once: services upgraded at the same time, in mode Paced.
        upgrades_stuck: services whose upgrade may be stuck before no further one starts, in mode Paced.
        record_decisions: folder to record decisions in; None records none.
        record_services: to record, as NAMESPACE/NAME; empty records all.
        record_size: MiB of all files of the recording together.
        observability: traces and logs of engines whose service does not set them.
        model_cache: folder of models that engines share.
    """

    kubeconfig: str | None
    namespaces: tuple[str, ...]
    leader_elect: bool
    lease_name: str
    key_secret: str
    metrics_port: int
    engine_image: str
    interval: float
    class_name: str = DEFAULT_CLASS
    engine_pull_policy: str = ""
    admin_peers: tuple[Manifest, ...] = ()
    client_peers: tuple[Manifest, ...] = ()
    upgrade: UpgradeMode = "Paced"
    upgrades_at_once: Share = SERVICES_AT_ONCE
    upgrades_stuck: Share = STUCK_SERVICES
    record_decisions: Path | None = None
    record_services: tuple[str, ...] = ()
    record_size: int = DEFAULT_MEBIBYTES
    observability: EngineObservability = field(default_factory=EngineObservability)
    gateway_service: str = ""
    endpoint_picker: bool = False
    metrics_authentication: bool = False
    vllm_image: str = VLLM_IMAGE
    plugin_image: str = ""
    model_cache: ModelCache | None = None


async def run_operator(options: Options) -> int:
    """Runs until SIGTERM or SIGINT (returns 0), or until the Lease is lost (returns 1).

    Raises:
        ConnectError: no usable configuration for the API server.
        OSError: the metrics port is in use, or the recording folder cannot be created.
    """
    memory.keep_little()
    return_code, recorder = 0, _recorder(options)
    configuration = await load_configuration(options.kubeconfig)
    metrics, heartbeat, cache, working = (
        OperatorMetrics(),
        Heartbeat(),
        ClusterCache(options.class_name),
        asyncio.Event(),
    )
    access = Access(reviewer(configuration)) if options.metrics_authentication else None
    web = WebServer(options.metrics_port, metrics.registry, heartbeat, access)
    own_namespace = _own_namespace(options)
    try:
        async with (
            client.ApiClient(configuration) as api_client,
            _session() as http,
            _leadership(options, configuration, heartbeat) as leadership,
            asyncio.TaskGroup() as tasks,
        ):
            api = OperatorApi(api_client, may_write=leadership.leads) if leadership else OperatorApi(api_client)
            admin_key = LiveAdminKey(api, own_namespace, options.key_secret)
            every, clock = ReconcilerSettings(interval=options.interval), Clock()
            stretch = Stretch()
            pool = ScrapePool(
                options.interval,
                span=every.span,
                stale_after=every.stale_after,
                stretch=lambda: stretch.factor,
                queued=lambda key: workers.enqueue(key),
            )
            metrics.count_scrapes(lambda: (pool.counts.done, pool.counts.failed))
            pusher = LimitsPusher(EngineClient(http), clock, leadership.leads if leadership else lambda: True)

            async def wake(key: ServiceKey) -> None:
                if reconciler.is_down(key):
                    workers.enqueue(key, urgent=True)

            def moved() -> None:
                # A pod that died must leave the endpoints of the services now, and not within an interval.
                for key in reconciler.services():
                    workers.enqueue(key)

            gateway = LiveGateway(http, api, options.gateway_service, wake, moved) if options.gateway_service else None
            if gateway is not None:
                metrics.count_gateway_pods(lambda: gateway.pods)
            reconciler = Reconciler(
                api,
                cache,
                pool,
                pusher,
                metrics,
                lambda: _settings(options, watches.available),
                lambda uid: admin_key.current.token(uid),
                UpgradePace(options.upgrade, options.upgrades_at_once, options.upgrades_stuck),
                every,
                clock,
                recorder,
                gateway,
                lambda: stretch.factor,
                lambda key, seconds: asyncio.get_running_loop().call_later(seconds, workers.enqueue, key),
            )
            workers = Workers(
                reconciler.reconcile,
                reconciler.services,
                heartbeat.round_done,
                metrics,
                WorkerSettings(interval=options.interval),
                stretch,
                reconciler.look,
            )
            optional = optional_kinds(endpoint_picker=options.endpoint_picker)
            watches = Watches(api, cache, workers.enqueue, options.namespaces, optional)

            async def act() -> None:
                metrics.leader.set(1)
                await _until_answered(admin_key.refresh)
                if gateway is not None:
                    await _until_answered(gateway.read_key)
                await watches.listed()
                await _until_answered(watches.catch_up)
                logger.info("looking after %d services", len(cache.services()))
                # The collector would look through all that was imported and listed, again and again, while everything
                # waits. Rounds and pages make no cycles: what they replace of it is freed by its reference count.
                gc.collect()
                gc.freeze()
                memory.give_back()
                working.set()
                try:
                    async with asyncio.TaskGroup() as acting:
                        if gateway is not None:
                            acting.create_task(gateway.run())
                            await gateway.settled()
                        for part in (workers.run(), admin_key.run()):
                            acting.create_task(part)
                finally:
                    pool.close()
                    await pusher.close()

            beating = _beat(heartbeat, lambda: working.is_set() and bool(cache.services()))
            running = [tasks.create_task(part) for part in (beating, watches.run(), _tidy())]
            await watches.listed([KIND])  # kopf looks for the kind once
            running.append(tasks.create_task(leadership.lead(act) if leadership else act()))

            async def stop() -> None:
                for task in running:
                    task.cancel()
                await asyncio.wait(running)

            registry = build_registry(cache, workers.enqueue, lambda: kopf_connection(configuration), stop)
            # Ends at a signal. If a task fails, the group cancels it.
            await kopf.operator(
                registry=registry,
                standalone=True,
                clusterwide=not options.namespaces,
                namespaces=options.namespaces,
            )
    except* (LeaseLostError, HistoryError) as errors:
        logger.error("%s: this process ends", _first(errors))
        return_code = 1
    except* Exception as errors:
        logger.error("acting failed", exc_info=errors)
        return_code = 1
    finally:
        web.close()
        if recorder is not None:
            recorder.close()
    return return_code


def _session() -> aiohttp.ClientSession:
    """A session for calls of many pods: without a limit of connections, no cookies are stored."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar())


@asynccontextmanager
async def _leadership(
    options: Options, configuration: client.Configuration, heartbeat: Heartbeat
) -> AsyncGenerator[Leadership | None, None]:
    """Yields this process's part in the election, which has a thread and a connection of its own."""
    if not options.leader_elect:
        yield None
        return

    async def connect() -> client.ApiClient:
        return client.ApiClient(configuration)  # needs a running loop, and belongs to it

    with LoopThread("lease") as thread:
        api_client = await thread.run(connect())
        try:
            yield Leadership(
                KubeApi(api_client),
                _own_namespace(options),
                _identity(),
                options.lease_name,
                problem=lambda: heartbeat.problem,
                beside=thread.run,
            )
        finally:
            await thread.run(api_client.close())


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    return _first(inner) if isinstance(inner := errors.exceptions[0], BaseExceptionGroup) else inner


async def _until_answered(call: Callable[[], Awaitable[object]]) -> None:
    """Returns once `call` succeeds."""
    while True:
        try:
            await call()
            return
        except (KubeApiError, UnusableKeyError) as error:
            logger.warning("not ready to act: %s", error)
            await asyncio.sleep(RETRY_SECONDS)


async def _beat(heartbeat: Heartbeat, rounds_due: Callable[[], bool]) -> None:
    while True:
        heartbeat.beat(rounds_due=rounds_due())
        await asyncio.sleep(1)


async def _tidy() -> None:
    """Gives free memory back: that of a burst would stay."""
    while True:
        await asyncio.sleep(TIDY_SECONDS)
        memory.give_back()


def _settings(options: Options, available_apis: frozenset[str]) -> Settings:
    return Settings(
        engine_image=options.engine_image,
        engine_pull_policy=options.engine_pull_policy,
        vllm_image=options.vllm_image,
        plugin_image=options.plugin_image,
        available_apis=available_apis,
        operator_namespace=os.environ.get("POD_NAMESPACE"),
        admin_peers=options.admin_peers,
        client_peers=options.client_peers,
        observability=options.observability,
        gateway_service=options.gateway_service,
        endpoint_picker=options.endpoint_picker,
        model_cache=options.model_cache,
    )


def _recorder(options: Options) -> DecisionRecorder | None:
    if options.record_decisions is None:
        return None
    return DecisionRecorder(options.record_decisions, options.record_services, options.record_size * MEBIBYTE)


def _own_namespace(options: Options) -> str:
    """Namespace of the operator's Lease and key."""
    return os.environ.get("POD_NAMESPACE") or next(iter(options.namespaces), "default")


def _identity() -> str:
    return os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"

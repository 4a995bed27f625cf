"""Fifty services wake at the first report of held requests, each in its own round and none after the interval."""

import asyncio
from contextlib import suppress
from time import monotonic

import aiohttp

from inflight_base.manifest.keys import ServiceKey
from inflight_operator.apply.engines import LimitsPusher
from inflight_operator.clock import Clock
from inflight_operator.keys import GatewayKey
from inflight_operator.observe import gateway as gateway_module
from inflight_operator.observe.cache import ClusterCache
from inflight_operator.observe.gateway import GatewayReader
from inflight_operator.reconcile.reconciler import Reconciler, ReconcilerSettings
from inflight_operator.reconcile.upgrades import UpgradePace
from inflight_operator.render.plan import Settings
from inflight_operator.telemetry.metrics import OperatorMetrics
from inflight_operator.workers import Workers, WorkerSettings
from tests.operator.fakes import FakeApi, FakeEngines, FakePool, service_body
from tests.operator.gateway_pods import endpoint_slice, gateway_pod, said

SERVICES = [ServiceKey("team", f"service-{number}") for number in range(50)]
INTERVAL = 1200.0
"""Seconds between two rounds of a service; a twentieth of the services has one in each twentieth of it."""
SLEEPER = {"gateway": {"enabled": True}, "scaling": {"minReplicas": 0}}


class SlowApi(FakeApi):
    """An API server that takes 5 ms for each write."""

    async def apply(self, manifest, *, force=True):
        await asyncio.sleep(0.005)
        return await super().apply(manifest, force=force)


class Gateway:
    def __init__(self, reader):
        self.view = reader.view
        self.addresses = ()

    def tenant_keys(self, key, uid):
        return GatewayKey(b"k" * 32).tenant_keys(key, uid)


def sleeping(cache):
    """Fifty services at zero, as an operator finds them that starts."""
    for key in SERVICES:
        body = service_body(spec=SLEEPER, uid=f"uid-{key.name}")
        body["metadata"]["name"] = key.name
        cache.put("InferenceService", body)
        labels, owner = {"inflight.dev/service": key.name}, [{"controller": True, "uid": f"uid-{key.name}"}]
        metadata = {"name": key.name, "namespace": key.namespace, "labels": labels, "ownerReferences": owner}
        container = {"name": "engine", "image": "engine:dev"}
        spec = {"replicas": 0, "template": {"spec": {"containers": [container]}}}
        cache.put("Deployment", {"kind": "Deployment", "metadata": metadata, "spec": spec})


async def test_fifty_services_wake_at_one_line_in_fifty_rounds_without_delay(monkeypatch):
    monkeypatch.setattr(gateway_module, "LOOKUP_SECONDS", 0.05)
    cache, clock, metrics = ClusterCache(), Clock(), OperatorMetrics()
    sleeping(cache)
    api, done = SlowApi(cache), []

    async with gateway_pod() as pod, aiohttp.ClientSession() as http:
        monkeypatch.setattr(gateway_module, "GATEWAY_STATE_PORT", pod.port)
        pod.begins_with(*(said(key.name) for key in SERVICES))

        async def slices():
            return [endpoint_slice("g-1")]

        async def wake(key):
            if reconciler.is_down(key):
                workers.enqueue(key, urgent=True)

        async def one_round(key):
            outcome = await reconciler.reconcile(key)
            done.append(key)
            return outcome

        reader = GatewayReader(http, slices, wake, lambda: [b"k" * 32])
        settings = Settings(engine_image="engine:dev", gateway_service="g.system.svc.cluster.local")
        reconciler = Reconciler(
            api,
            cache,
            FakePool({}),
            LimitsPusher(FakeEngines({}), clock, lambda: True),
            metrics,
            lambda: settings,
            lambda uid: "token",
            UpgradePace(),
            ReconcilerSettings(interval=INTERVAL),
            clock,
            None,
            Gateway(reader),
        )
        workers = Workers(one_round, reconciler.services, lambda: None, metrics, WorkerSettings(interval=INTERVAL))
        tasks = [asyncio.create_task(reader.run()), asyncio.create_task(workers.run())]
        try:
            await reader.settled(60.0)
            await until(lambda: len(done) >= len(SERVICES))  # the rounds with which an operator begins
            assert replicas(cache) == [0] * len(SERVICES)
            done.clear()
            begun = monotonic()
            await pod.says(*(said(key.name, held=1, tokens=100) for key in SERVICES))
            await until(lambda: replicas(cache) == [1] * len(SERVICES))
            assert monotonic() - begun < 15.0
            await until(lambda: len(done) >= len(SERVICES))
            assert sorted(done) == sorted(SERVICES)
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)


def replicas(cache):
    return [cache.child(key, "Deployment", key.name)["spec"]["replicas"] for key in SERVICES]


async def until(holds):
    async with asyncio.timeout(60.0):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

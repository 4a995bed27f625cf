"""A service with its pods, for rounds against a recording API server and model engines (see fakes.py)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from inflight_base.manifest.engines import annotation_of, engine_type_of
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import ENGINE_ANNOTATION
from inflight_base.manifest.slices import GatewayAddress
from inflight_operator.apply.engines import LimitsPusher
from inflight_operator.clock import Clock
from inflight_operator.decide.tuning.types import TuningPolicy
from inflight_operator.observe.cache import ClusterCache
from inflight_operator.observe.gateway_view import GatewayView
from inflight_operator.reconcile.reconciler import Reconciler, ReconcilerSettings
from inflight_operator.reconcile.upgrades import UpgradePace
from inflight_operator.render.plan import Settings
from inflight_operator.telemetry.metrics import OperatorMetrics
from tests.operator.fakes import KEY, FakeApi, FakeEngine, FakeEngines, FakePool, endpoints_body, pod_body, service_body
from tests.operator.model_engine import ModelEngine

SMALL = {"engine": {"maxNumSeqs": 64, "maxNumBatchedTokens": 2048}}
OTHER = ServiceKey("team", "other")
START = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


GATEWAY = "inflight-gateway.inflight-system.svc.cluster.local"


class FakeGateway:
    """Reports of two gateway pods, the same for every service."""

    def __init__(self):
        self.seen = GatewayView(pods=2, heard=2, idle_s=3600.0)
        self.addresses = (GatewayAddress("10.0.0.1"), GatewayAddress("10.0.0.2"))

    def view(self, key):
        return self.seen

    def tenant_keys(self, key, uid):
        return (f"tenant key of {uid}",)

    def says(self, **more):
        self.seen = replace(self.seen, **more)


class World:
    """A service, its pods, and a clock that moves only when a test moves it."""

    def __init__(self):
        self.now = 1000.0
        self.clock = Clock(lambda: self.now, lambda: START + timedelta(seconds=self.now - 1000.0))
        self.cache = ClusterCache()
        self.api = FakeApi(self.cache)
        self.engines = {}
        self.metrics = OperatorMetrics()
        self.settings = Settings(engine_image="engine:dev", plugin_image="operator:dev")
        self.every = ReconcilerSettings(tuning=TuningPolicy(window=15.0))
        self.pace = UpgradePace()
        self.listed = {}
        self.recorder = None
        self.gateway = None
        self.stretch = 1.0
        self.again = []
        self.restart()

    def behind_gateway(self):
        """Gives the operator a gateway, whose two pods have reported no request for an hour."""
        self.settings = replace(self.settings, gateway_service=GATEWAY)
        self.gateway = FakeGateway()
        self.restart()

    def restart(self):
        """Starts a new operator process, which knows only the state of the cluster."""
        self.pool = FakePool(self.engines, self.every.span)
        self.pusher = LimitsPusher(FakeEngines(self.engines), self.clock, lambda: True)
        self.reconciler = Reconciler(
            self.api,
            self.cache,
            self.pool,
            self.pusher,
            self.metrics,
            lambda: self.settings,
            lambda uid: f"token of {uid}",
            self.pace,
            self.every,
            self.clock,
            self.recorder,
            self.gateway,
            lambda: self.stretch,
            lambda key, seconds: self.again.append((key, seconds)),
        )

    def service(self, **more):
        self.cache.put("InferenceService", service_body(**more))

    def pod(self, number, **more):
        ip = f"10.0.0.{number}"
        if ip not in self.engines:
            self.engines[ip] = FakeEngine(ModelEngine(time=self.now, max_num_seqs=64, max_num_batched_tokens=2048))
        body = pod_body(f"chat-{number}", ip=ip, **more)
        if annotation := annotation_of(engine_type_of(self.cache.service(KEY) or {})):
            body["metadata"]["annotations"] = {ENGINE_ANNOTATION: annotation}
        self.cache.put("Pod", body)
        self.listed[body["metadata"]["name"]] = body if more.get("ready", True) else None
        self.route()
        return self.engines[ip]

    def route(self):
        """Puts the EndpointSlice that Kubernetes makes of the ready pods into the cache."""
        self.cache.put("EndpointSlice", endpoints_body([body for body in self.listed.values() if body]))

    async def round(self, seconds=3.0):
        self.now += seconds
        for engine in self.engines.values():
            engine.model.run_until(self.now)
        self.api.calls.clear()
        self.again.clear()
        self.pool.tick()
        done = await self.reconciler.reconcile(KEY)
        await self.pusher.idle()
        return done

    @property
    def status(self):
        return self.cache.service(KEY).get("status", {})

    def image(self):
        return self._engine()["image"]

    def command(self):
        return self._engine()["command"]

    def _engine(self):
        return self.cache.child(KEY, "Deployment", "chat")["spec"]["template"]["spec"]["containers"][0]

    def rolled_out(self):
        """Gives the Deployment the status of its controller once all pods are of the newest template."""
        live = self.cache.child(KEY, "Deployment", "chat")
        count = live["spec"]["replicas"]
        self.cache.put("Deployment", {**live, "status": {"updatedReplicas": count, "replicas": count}})

    def condition(self, kind):
        return next(one for one in self.status["conditions"] if one["type"] == kind)

    def replicas(self):
        return self.cache.child(KEY, "Deployment", KEY.name)["spec"]["replicas"]

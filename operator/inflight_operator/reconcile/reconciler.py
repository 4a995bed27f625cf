"""Reconciliation of all services: snapshot -> decide -> execute -> report.

Level-triggered: a round uses the current state, not the events. An event only triggers a round before the next resync.
State that must survive a restart is in the status and in the children; windows and histories restart, and decisions
wait until they are full.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from pydantic import ValidationError

from inflight_base.manifest import Manifest
from inflight_base.manifest.engines import INFLIGHT
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import KIND, child_names
from inflight_operator.api.types import InferenceService, ServiceRecord
from inflight_operator.apply.children import owner_uid
from inflight_operator.apply.engines import LimitsPusher
from inflight_operator.apply.kube import OperatorApi
from inflight_operator.clock import Clock
from inflight_operator.decide.replicas.start_up import (
    Elsewhere,
    FleetStartUps,
    Loading,
    loading_of,
    starts_for_long,
)
from inflight_operator.decide.status.conditions import unreadable
from inflight_operator.decide.tuning.types import TuningPolicy
from inflight_operator.observe.attainment import Attainment
from inflight_operator.observe.cache import ClusterCache
from inflight_operator.observe.front_view import NO_FRONT, front_view
from inflight_operator.observe.live_gateway import LiveGateway
from inflight_operator.observe.place_finder import PlaceFinder, Where
from inflight_operator.observe.pods import PodView
from inflight_operator.observe.pool_view import pool_parents
from inflight_operator.observe.prefetch_view import Fetch, Places, fetches_of
from inflight_operator.observe.prefill_view import prefill_view
from inflight_operator.observe.scrape import ScrapePool, Target
from inflight_operator.observe.window import Window
from inflight_operator.reconcile.decide import decide, routed_in
from inflight_operator.reconcile.execute import Executor, ExecutorState
from inflight_operator.reconcile.memory import Memory, first_memory
from inflight_operator.reconcile.plan import Outcome, Plan
from inflight_operator.reconcile.policy import Policy, policy_of, servable
from inflight_operator.reconcile.prefill import PrefillOf, as_one, prefill_of
from inflight_operator.reconcile.report import findings_after, spec_problem, unreadable_status
from inflight_operator.reconcile.reporter import Reporter, ReporterState, service_values
from inflight_operator.reconcile.snapshot import Snapshot, engine_image, fresh_samples
from inflight_operator.reconcile.upgrades import UpgradePace
from inflight_operator.render.plan import Settings
from inflight_operator.render.prefetch import shared_claim
from inflight_operator.telemetry.metrics import OperatorMetrics

logger = logging.getLogger(__name__)

FIRST_SCRAPE_SECONDS = 1.0
"""Longest wait of a service's first round for the first scrape of its ready pods. A new leader that did not wait would
report all services as unmeasured, push the limits that are in force, and report the contrary soon after."""


class Recorder(Protocol):
    """Records inputs and outputs of decisions; never fails."""

    def decided(self, key: ServiceKey, snapshot: Snapshot, memory: Memory, plan: Plan) -> None: ...


@dataclass(frozen=True, slots=True)
class ReconcilerSettings:
    """Attributes:
    interval: seconds between two scrapes of a pod.
    tuning: parameters of tuning.
    """

    interval: float = 3.0
    tuning: TuningPolicy = field(default_factory=TuningPolicy)

    @property
    def stale_after(self) -> float:
        """Age in seconds from which a sample is stale: two scrapes in a row failed."""
        return self.interval * 2 + 4

    @property
    def span(self) -> float:
        """Length in seconds of the window of samples to decide on: three scrapes at least, or there would be no
        differences to take."""
        return max(30.0, self.interval * 3)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A version of a service's object, parsed. Attributes: of: the service that it is the prefill set of, if any."""

    body: Manifest
    settings: Settings
    of: PrefillOf | None
    service: InferenceService
    unread: tuple[str, ...]
    policy: Policy

    def is_of(self, body: Manifest, settings: Settings, of: PrefillOf | None) -> bool:
        """Returns True if `body` has the same spec, and maybe another status."""
        return (self.settings, self.of) == (settings, of) and self.body.get("spec") == body.get("spec")


@dataclass(slots=True)
class _ServiceState:
    """State of one service between two rounds. Attributes: scraped: pods of which the pool has those to scrape, and
    those of them that load a model."""

    reading: _Reading
    memory: Memory
    scraped: tuple[tuple[PodView, ...], ...] | None = None
    attainment: Attainment | None = None
    executor: ExecutorState = field(default_factory=ExecutorState)
    reporter: ReporterState = field(default_factory=ReporterState)


class Reconciler:
    """Reconciles the services of this operator in rounds, which `Workers` schedules.

    Args:
        settings: current settings of the installation: optional APIs may be added or removed.
        token_of: admin token of the service with a uid.
        recorder: recorder of all decisions; None records none.
        gateway: None if the operator runs without one.
        stretch: factor of the interval between scrapes now: samples are older then, and not stale.
        again: told of a service that needs a round in so many seconds, without any event.
    """

    def __init__(
        self,
        api: OperatorApi,
        cache: ClusterCache,
        pool: ScrapePool,
        pusher: LimitsPusher,
        metrics: OperatorMetrics,
        settings: Callable[[], Settings],
        token_of: Callable[[str], str],
        pace: UpgradePace,
        every: ReconcilerSettings,
        clock: Clock,
        recorder: Recorder | None = None,
        gateway: LiveGateway | None = None,
        stretch: Callable[[], float] = lambda: 1.0,
        again: Callable[[ServiceKey, float], object] = lambda key, seconds: None,
    ) -> None:
        self._api = api
        self._cache = cache
        self._pool = pool
        self._pusher = pusher
        self._metrics = metrics
        self._settings = settings
        self._token_of = token_of
        self._pace = pace
        self._every = every
        self._clock = clock
        self._recorder = recorder
        self._gateway = gateway
        self._stretch = stretch
        self._again = again
        self._executor = Executor(api, cache, pusher, clock)
        self._reporter = Reporter(api, cache, clock)
        self._places = PlaceFinder(api, clock)
        self._known: dict[ServiceKey, _ServiceState] = {}
        self._unreadable: dict[ServiceKey, ReporterState] = {}
        self._looked: set[ServiceKey] = set()
        """Services that have been scraped and had no round yet."""
        self._startups = FleetStartUps()

    def services(self) -> set[ServiceKey]:
        """Returns every service that needs periodic rounds: existing services, and deleted ones whose state must be
        removed."""
        return {*self._cache.services(), *self._known}

    def is_down(self, key: ServiceKey) -> bool:
        """Returns True if no replica takes requests, or none is ordered: a held request waits for a decision then."""
        known = self._known.get(key)
        return (known is not None and known.memory.replicas == 0) or not any(
            pod.serves for pod in self._cache.pods(key)
        )

    async def look(self, key: ServiceKey) -> bool:
        """Scrapes the service's ready pods before its first round; returns True if requests wait in one of them."""
        if key in self._known or key in self._unreadable or key in self._looked:
            return False
        self._pool.keep(key, [_target(pod) for pod in self._cache.pods(key) if pod.serves])
        await self._pool.first_results(key, FIRST_SCRAPE_SECONDS)
        if self._cache.service(key) is not None:  # another one of its name is looked at anew
            self._looked.add(key)
        return self._pool.queue(key) > 0

    async def reconcile(self, key: ServiceKey) -> bool:
        """Runs a round for one service; returns True if all its writes were accepted."""
        await self.look(key)
        self._looked.discard(key)
        body = self._cache.service(key)
        if body is None or "deletionTimestamp" in body["metadata"]:
            self._forget(key)  # its children have it as their owner: Kubernetes deletes them
            if body is not None:
                self._pace.note(key, None)
            return True
        try:
            known = self._read(key, body)
        except ValidationError as error:
            return await self._report_unreadable(key, ServiceRecord.from_dict(body), spec_problem(error))
        snapshot = self._snapshot(key, known, await self._find_places(key, known.reading))
        plan = decide(snapshot, known.memory)
        if self._recorder is not None:
            self._recorder.decided(key, snapshot, known.memory, plan)
        known.memory = plan.memory
        self._pace.note(key, plan.upgrade)
        self._startups.note(key, plan.memory.startups)
        outcome = await self._executor.execute(key, snapshot, plan, known.executor)
        reported = await self._reporter.report(key, snapshot, plan, outcome, known.reporter)
        self._export(key, known, snapshot, plan, outcome)
        if 0 < (seconds := routed_in(plan.memory, snapshot.now)) < float("inf"):
            self._again(key, seconds)
        return reported and not outcome.failed

    def _read(self, key: ServiceKey, body: Manifest) -> _ServiceState:
        """Returns the state of the service, with its current object.

        Raises:
            pydantic.ValidationError: the object cannot be parsed, not even in part.
        """
        known, settings, of = self._known.get(key), self._settings(), prefill_of(body, self._cache.service)
        before = None if known is None else known.reading
        if known is not None and known.reading.body is body and known.reading.is_of(body, settings, of):
            return known
        if before is not None and before.is_of(body, settings, of):  # the operator writes statuses far more often
            service = before.service.model_copy(update=dict(ServiceRecord.from_dict(body)))
            reading = replace(before, body=body, service=service)
        else:
            asked, unread = InferenceService.read(body)
            asked = asked if of is None else as_one(asked, of)
            service, name = servable(asked, settings), "" if of is None else of.key.name
            reading = _Reading(body, settings, of, service, unread, policy_of(asked, settings, name))
        if known is not None and known.memory.uid == service.metadata.uid:
            known.reading = reading
            return known
        deployment = self._own(key, service.metadata.uid, "Deployment", child_names(key.name).main)
        ordered = None if deployment is None else int(deployment["spec"].get("replicas", 0))
        image = "" if deployment is None else engine_image(deployment)
        now, at = self._clock.steady(), self._clock.calendar()
        memory = first_memory(service, reading.policy, ordered, now, at, image)
        known = self._known[key] = _ServiceState(reading, memory, reporter=ReporterState(at=now))
        return known

    async def _find_places(self, key: ServiceKey, reading: _Reading) -> Places | None:
        """Returns where the model is fetched to before engines need it; None for a service that does not ask for it."""
        spec = reading.service.spec
        if reading.policy.prefetch is None or spec.model.prefetch is None:
            return None
        if not reading.policy.prefetch.cached:
            return Places()
        tolerations = [one.model_dump(by_alias=True, exclude_none=True) for one in spec.template.tolerations]
        claim = shared_claim(reading.service, reading.settings)
        return await self._places.find(key, Where(spec.model.prefetch.node_selector, tolerations, claim))

    def _fetches(self, key: ServiceKey, uid: str) -> tuple[Fetch, ...]:
        jobs = (one for one in self._cache.children(key) if one["kind"] == "Job" and owner_uid(one) == uid)
        return fetches_of(jobs, self._cache.fetchers(key))

    def _snapshot(self, key: ServiceKey, known: _ServiceState, places: Places | None) -> Snapshot:
        reading, now, at = known.reading, self._clock.steady(), self._clock.calendar()
        pods = tuple(self._cache.pods(key))
        slow = tuple(one for one in pods if one.engine.name == INFLIGHT and starts_for_long(one, at.timestamp()))
        if (pods, slow) != known.scraped:
            known.scraped = pods, slow
            serving = [_target(pod) for pod in pods if pod.serves]
            self._pool.keep(key, [*serving, *(_target(pod, _SLOW) for pod in slow)])
        scraped, errors, uid = self._pool.window(key), self._pool.errors(key), reading.service.metadata.uid
        window, loading = _parted(scraped)
        max_age = self._every.stale_after * self._stretch()
        of, names = reading.of, child_names(key.name)
        gateway = self._gateway if reading.policy.gateway else None
        front = front_view(self._cache, key, uid) if of is None else NO_FRONT
        left = self._gateway if gateway is None and front.routed else None
        through = self._gateway if gateway is not None or of is not None else left
        # Engines read from each other, and know tenants, by what the service and its prefill set have in common.
        shared_key, shared_uid = (key, uid) if of is None else (of.key, of.uid)
        services = self._cache.count()
        return Snapshot(
            service=reading.service,
            unread=reading.unread,
            policy=reading.policy,
            settings=reading.settings,
            now=now,
            at=at,
            admin_token=self._token_of(shared_uid),
            tuning=self._every.tuning,
            pods=pods,
            deployment=self._own(key, uid, "Deployment", names.main),
            listed=self._cache.endpoints(key),
            window=window,
            fresh=fresh_samples(window, pods, now, max_age, window.pods.keys() - errors.keys()),
            scrape_errors=errors,
            pushes=self._pusher.pushes(key),
            may_move=self._pace.may_move(services),
            mover=self._pace.holder,
            stopped=self._pace.stopped(services),
            pooled=gateway is not None or of is not None,
            gateway=None if gateway is None else gateway.view(key),
            tenant_keys=() if through is None else through.tenant_keys(shared_key, shared_uid),
            gateway_pods=() if self._gateway is None else self._gateway.addresses,
            front=front,
            leaving=None if left is None else left.view(key),
            elsewhere=Elsewhere() if known.memory.startups.starts else self._startups.elsewhere(reading.policy.engine),
            loading=loading,
            pool_parents=pool_parents(self._cache.child(key, "InferencePool", names.main)),
            places=places,
            fetches=() if places is None else self._fetches(key, uid),
            prefill=prefill_view(self._own(key, uid, KIND, names.prefill)),
        )

    def _own(self, key: ServiceKey, uid: str, kind: str, name: str) -> Manifest | None:
        """Returns a live child, if it is this service's: another object of the same name may exist."""
        live = self._cache.child(key, kind, name)
        return live if live is not None and owner_uid(live) == uid else None

    def _export(self, key: ServiceKey, known: _ServiceState, snapshot: Snapshot, plan: Plan, outcome: Outcome) -> None:
        for decision in plan.decisions:
            self._metrics.decisions.labels(decision.kind, decision.reason.code).inc()
        values = service_values(snapshot, plan)
        if snapshot.service.spec.slo is None:
            known.attainment = None  # no latency targets
        else:
            known.attainment = (known.attainment or Attainment()).with_samples(
                snapshot.fresh, {pod.uid for pod in snapshot.pods}, values.ttft_target, values.tpot_target
            )
        findings = findings_after(key.name, plan, outcome)
        self._metrics.of_services.record(
            key, values, findings, known.attainment, plan.decisions, snapshot.at.timestamp()
        )

    def _forget(self, key: ServiceKey) -> None:
        self._pool.forget(key)
        self._pusher.keep(key, ())
        self._pace.forget(key)
        self._places.forget(key)
        self._startups.forget(key)
        self._unreadable.pop(key, None)
        self._metrics.of_services.forget(key)
        self._known.pop(key, None)

    async def _report_unreadable(self, key: ServiceKey, record: ServiceRecord, problem: str) -> bool:
        """Reports an unusable spec in the status; nothing else changes."""
        self._pace.note(key, None)
        self._pool.forget(key)
        if (known := self._known.get(key)) is not None:
            known.scraped = None
        pods = self._cache.pods(key)
        findings = unreadable(sum(pod.serves for pod in pods), problem)
        self._metrics.of_services.record_unreadable(key, findings)
        status = unreadable_status(record, findings, pods, self._clock.calendar())
        return await self._reporter.write(key, record, status, self._unreadable.setdefault(key, ReporterState()))


_SLOW = "slow/"
"""Begin of the uids under which pods that are not Ready are scraped: their samples are no measurements."""


def _parted(scraped: Window) -> tuple[Window, dict[str, Loading]]:
    """Returns the window of the pods that serve, and the progress of those that load their model, by uid."""
    serving = {uid: history for uid, history in scraped.pods.items() if not uid.startswith(_SLOW)}
    if len(serving) == len(scraped.pods):
        return scraped, {}
    found = {uid: loading_of(scraped.pods[uid].newest) for uid in scraped.pods.keys() - serving.keys()}
    return replace(scraped, pods=serving), {
        uid.removeprefix(_SLOW): loading for uid, loading in sorted(found.items()) if loading is not None
    }


def _target(pod: PodView, prefix: str = "") -> Target:
    return Target(prefix + pod.uid, pod.name, pod.url(pod.metrics_port) + pod.engine.metrics_path, pod.engine.metrics)

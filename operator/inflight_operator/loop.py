"""The loop: for one service at a time, observe -> decide -> render -> apply -> tell the engines -> status.

Level-triggered: a round looks at what is there now, not at what happened. An event only means that a service is looked
at sooner than at the next resync. What must survive a restart is in the status and in the children; windows and
histories start anew, and decisions wait until they are full.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from inflight_operator import inputs
from inflight_operator.api.types import KIND, MAX_DECISIONS, Decision, InferenceService, ServiceRecord
from inflight_operator.apply import ChildConflictError, admin_token, sync_children
from inflight_operator.apply.children import ChildApi
from inflight_operator.apply.kube import KubeApiError
from inflight_operator.decide.conditions import Finding, Metrics, find_conditions, stuck, unreadable
from inflight_operator.decide.draining import deletion_costs
from inflight_operator.decide.scaling import PodLoad, ScalingDecision, decide_scaling
from inflight_operator.decide.tuning import TuningDecision, TuningMode, decide_tuning
from inflight_operator.decide.tuning_types import Limits, TuningPolicy, TuningState
from inflight_operator.decide.views import scaling_observation, tuning_view
from inflight_operator.engines import EngineClient, EngineError
from inflight_operator.memory import Memory, first_memory
from inflight_operator.metrics import OperatorMetrics
from inflight_operator.observe.cache import ClusterCache, ServiceKey
from inflight_operator.observe.metrics import Sample
from inflight_operator.observe.pods import PodView
from inflight_operator.observe.scrape import Scraper
from inflight_operator.render import ChildPlan, Manifest, Settings, child_names, render
from inflight_operator.render.command import ENGINE_PORT
from inflight_operator.reporting import (
    Report,
    advised_already,
    build_status,
    is_news,
    made_decision,
    observed_status,
    ready_transition,
    scaling_finding,
    spec_problem,
    tuning_finding,
    unreadable_status,
)

logger = logging.getLogger(__name__)


class Api(ChildApi, Protocol):
    """What the loop needs of `KubeApi`."""

    async def list(self, kind: str, namespace: str | None = None, selector: str | None = None) -> list[Manifest]: ...

    async def patch_status(self, service: ServiceRecord, status: dict[str, Any]) -> Manifest | None: ...

    async def set_pod_deletion_cost(self, namespace: str, pod: str, cost: int) -> None: ...

    async def event(
        self, service: ServiceRecord, type: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Attributes:
    interval: seconds between two scrapes of a service's engines.
    status_interval: seconds between two writes of a status in which only measurements and wording changed.
    tuning: how limits are stepped.
    """

    interval: float = 3.0
    status_interval: float = 5.0
    tuning: TuningPolicy = field(default_factory=TuningPolicy)

    @property
    def stale_after(self) -> float:
        """Seconds from which a sample is stale: two scrapes in a row failed."""
        return self.interval * 2 + 4

    @property
    def span(self) -> float:
        """Seconds of samples to decide on: three scrapes at least, or there would be no differences to take."""
        return max(30.0, self.interval * 3)


class Loop:
    """Rounds for all services of this operator; `Workers` says when which service has one."""

    def __init__(
        self,
        api: Api,
        cache: ClusterCache,
        scraper: Scraper,
        engines: EngineClient,
        metrics: OperatorMetrics,
        settings: Settings,
        loop_settings: LoopSettings,
    ) -> None:
        self._api = api
        self._cache = cache
        self._scraper = scraper
        self._engines = engines
        self._metrics = metrics
        self._settings = settings
        self._every = loop_settings
        self._memory: dict[ServiceKey, Memory] = {}

    def services(self) -> set[ServiceKey]:
        """Every service that needs a round now and then: those there are, and those that were and must be forgotten."""
        return {*self._cache.services(), *self._memory}

    async def reconcile(self, key: ServiceKey) -> None:
        """One round for one service.

        Raises:
            KubeApiError, ChildConflictError: the round could not be finished; where the API server lets itself be
                written to, the status says why.
        """
        body = self._cache.service(key)
        if body is None or "deletionTimestamp" in body["metadata"]:
            self._forget(key)  # its children have it as their owner: Kubernetes deletes them
            return
        try:
            service = InferenceService.from_dict(body)
        except ValidationError as error:
            await self._report_unreadable(key, ServiceRecord.from_dict(body), spec_problem(error))
            return
        memory = self._remember(key, service)
        pods = self._cache.pods(key)

        await self._observe(memory, pods)
        scaling = self._decide_replicas(key, service, memory, pods)
        tuning = self._decide_limits(service, memory, pods)
        decided = self._put_in_force(service, memory, scaling, tuning)
        memory.unreported = (*memory.unreported, *decided)[-MAX_DECISIONS:]
        children = render(service, await self._plan(key, service, memory), self._settings)
        failure = await self._apply(key, memory, children, pods, shrinks=memory.replicas < _ordered(self._cache, key))
        told, complaint = await self._tell_engines(key, memory, children, pods)
        findings = self._find(key, service, memory, children, pods, scaling, complaint)
        if failure is not None:
            findings = stuck(findings, "ApplyFailed", str(failure))
        await self._report(service, memory, pods, scaling.replicas, told, findings)
        if failure is not None:
            raise failure

    def _remember(self, key: ServiceKey, service: InferenceService) -> Memory:
        memory = self._memory.get(key)
        if memory is None or memory.uid != service.metadata.uid:
            memory = first_memory(service, _ordered(self._cache, key), monotonic(), self._every.span)
            self._memory[key] = memory
        elif memory.generation != service.metadata.generation:
            # Another spec may mean another model, or other bounds: what was measured before tells nothing of it.
            memory.generation = service.metadata.generation
            memory.tuning = TuningState(window_start=monotonic())
        return memory

    def _forget(self, key: ServiceKey) -> None:
        if self._memory.pop(key, None) is not None:
            self._metrics.forget(*key)

    async def _observe(self, memory: Memory, pods: list[PodView]) -> None:
        """Scrapes the ready pods; where an event asked for this round soon after another, only those never scraped."""
        due = [pod for pod in pods if _serves(pod)]
        if monotonic() - memory.scraped_at < self._every.interval * 0.8:
            due = [pod for pod in due if not memory.window.pods.get(pod.uid)]
        else:
            memory.scraped_at, memory.scrape_errors = monotonic(), {}
        scrapes = await self._scraper.scrape(due, ENGINE_PORT)
        samples = {one.uid: one.sample for one in scrapes if one.sample is not None}
        memory.scrape_errors.update({one.uid: one.error for one in scrapes if one.sample is None})
        memory.window = memory.window.with_samples(samples, [pod.uid for pod in pods if not pod.deleting], monotonic())

    def _fresh(self, memory: Memory, pods: list[PodView]) -> dict[str, Sample]:
        ready = {pod.uid for pod in pods if _serves(pod)}
        newest = memory.window.latest(monotonic(), self._every.stale_after)
        return {uid: sample for uid, sample in newest.items() if uid in ready}

    def _decide_replicas(
        self, key: ServiceKey, service: InferenceService, memory: Memory, pods: list[PodView]
    ) -> ScalingDecision:
        spec, now = service.spec, monotonic()
        ready = [pod.uid for pod in pods if _serves(pod)]
        current = memory.replicas if spec.scaling.mode == "Operator" else spec.replicas
        observation = scaling_observation(memory.window, ready, current, now, self._every.stale_after)
        decision = decide_scaling(
            observation,
            inputs.scaling_targets(spec),
            inputs.scaling_behavior(spec),
            inputs.scaling_bounds(spec),
            memory.scaling,
        )
        memory.scaling = decision.history
        self._metrics.desired_replicas.labels(*key).set(decision.replicas)
        self._metrics.scrape_age.labels(*key).set(memory.window.oldest_age(now))
        return decision

    def _decide_limits(self, service: InferenceService, memory: Memory, pods: list[PodView]) -> TuningDecision | None:
        """None while no ready engine tells its limits."""
        fresh = self._fresh(memory, pods)
        if not any(sample.max_num_seqs is not None for sample in fresh.values()):
            return None
        spec, limits = service.spec, memory.limits
        decision = decide_tuning(
            TuningMode(spec.tuning.mode),
            tuning_view(memory.window, memory.tuning.window_start, monotonic()),
            Limits(limits.max_num_seqs, limits.max_num_batched_tokens),
            inputs.tuning_bounds(spec, inputs.capacity(spec, fresh.values())),
            inputs.slo(spec),
            memory.tuning,
            self._every.tuning,
        )
        memory.tuning = decision.state
        if decision.code != "Measuring" or memory.tuning_note is None:
            memory.tuning_note = decision
        memory.take_limits(decision.limits, max((sample.revision or 0 for sample in fresh.values()), default=0))
        return decision

    def _put_in_force(
        self, service: InferenceService, memory: Memory, scaling: ScalingDecision, tuning: TuningDecision | None
    ) -> tuple[Decision, ...]:
        """Takes over what was decided; returns what is worth recording."""
        now, decided = datetime.now(UTC), []
        if service.spec.scaling.mode == "External":
            memory.replicas = service.spec.replicas
        elif scaling.replicas != memory.replicas:
            memory.replicas = scaling.replicas
            decided.append(made_decision("Scaling", scaling.reason, applied=True, now=now))
            self._metrics.decisions.labels("Scaling", scaling.code).inc()
        if tuning is not None and tuning.change is not None:
            applied = service.spec.tuning.mode == "Auto"
            decision = made_decision("Tuning", tuning.change.text, applied=applied, now=now)
            if applied or not advised_already(service.status, decision):
                decided.append(decision)
                self._metrics.decisions.labels("Tuning", tuning.change.code).inc()
        return tuple(decided)

    async def _plan(self, key: ServiceKey, service: InferenceService, memory: Memory) -> ChildPlan:
        name = child_names(service.metadata.name).admin_token
        # Never make a new token for want of a watch event: running engines hold the one in the live Secret.
        secret = self._cache.child(key, "Secret", name) or await self._api.get("Secret", key.namespace, name)
        replicas = memory.replicas if service.spec.scaling.mode == "Operator" else None
        return ChildPlan(replicas, memory.limits, admin_token(secret))

    async def _apply(
        self, key: ServiceKey, memory: Memory, children: list[Manifest], pods: list[PodView], *, shrinks: bool
    ) -> KubeApiError | ChildConflictError | None:
        """Makes the children what they should be; returns what stood in the way."""
        try:
            if shrinks:
                loads = {
                    uid: PodLoad(sample.waiting, sample.running, sample.kv_usage)
                    for uid, sample in self._fresh(memory, pods).items()
                }
                for pod, cost in deletion_costs(pods, loads).items():
                    await self._api.set_pod_deletion_cost(key.namespace, pod, cost)
            changes = await sync_children(self._api, children, self._cache.children(key))
        except (KubeApiError, ChildConflictError) as error:
            return error
        for what in changes.applied:
            logger.info("%s: applied %s", key, what)
        for what in changes.deleted:
            logger.info("%s: deleted %s", key, what)
        return None

    async def _tell_engines(
        self, key: ServiceKey, memory: Memory, children: list[Manifest], pods: list[PodView]
    ) -> tuple[int, str]:
        """Brings every ready engine to the limits in force; returns how many run with them, and the first complaint."""
        fresh = self._fresh(memory, pods)
        tellable = {pod.uid: pod for pod in pods if pod.uid in fresh and fresh[pod.uid].max_num_seqs is not None}
        behind = [pod for uid, pod in tellable.items() if not memory.in_force(uid, fresh[uid])]
        memory.told = {uid: told for uid, told in memory.told.items() if uid in tellable}
        token = admin_token(next(child for child in children if child["kind"] == "Secret"))
        answers = await asyncio.gather(
            *(self._engines.set_limits(pod, ENGINE_PORT, token, memory.limits) for pod in behind),
            return_exceptions=True,
        )
        complaint = ""
        for pod, answer in zip(behind, answers, strict=True):
            if isinstance(answer, EngineError):
                complaint = complaint or str(answer)
                logger.warning("%s: %s", key, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                memory.told[pod.uid] = (memory.limits.revision, monotonic())
        return sum(memory.in_force(uid, fresh[uid]) for uid in tellable), complaint

    def _find(
        self,
        key: ServiceKey,
        service: InferenceService,
        memory: Memory,
        children: list[Manifest],
        pods: list[PodView],
        scaling: ScalingDecision,
        complaint: str,
    ) -> tuple[Finding, ...]:
        fresh, ready = self._fresh(memory, pods), [pod for pod in pods if _serves(pod)]
        error = next((memory.scrape_errors[pod.uid] for pod in ready if pod.uid in memory.scrape_errors), "")
        live = self._cache.child(key, "Deployment", child_names(service.metadata.name).main)
        return find_conditions(
            inputs.service_facts(service.spec, children),
            inputs.deployment_view(live, memory.replicas),
            pods,
            Metrics(len(ready), len(fresh), error),
            scaling_finding(service, scaling),
            tuning_finding(service, memory.tuning_note if fresh else None, len(ready), complaint),
        )

    async def _report(
        self,
        service: InferenceService,
        memory: Memory,
        pods: list[PodView],
        desired: int,
        told: int,
        findings: tuple[Finding, ...],
    ) -> None:
        """Writes the status where it changed, then an event for each transition."""
        now = datetime.now(UTC)
        fresh = self._fresh(memory, pods)
        observed = observed_status(memory.window, fresh, monotonic(), now)
        report = Report(findings, pods, desired, memory.limits, told, observed, memory.unreported)
        status = build_status(service, report, now)
        due = monotonic() - memory.written_at >= self._every.status_interval
        if not due and not is_news(service.status, status):
            return
        live = await self._api.patch_status(service, status.to_dict())
        if live is not None:
            memory.written_at = monotonic()
            self._cache.put(KIND, live)
        decided, memory.unreported = memory.unreported, ()
        transition = ready_transition(service.status, status)
        if transition is not None:
            await self._event(service, *transition)
        for decision in decided:
            text = f"{decision.change}: {decision.reason}"
            reason = "Scaled" if decision.kind == "Scaling" else "Tuned" if decision.applied else "TuningAdvice"
            await self._event(service, "Normal", reason, text)

    async def _event(
        self, service: InferenceService, type: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        """The status has said it already, so an event that the API server does not take fails no round."""
        try:
            await self._api.event(service, type, reason, message)
        except KubeApiError as error:
            logger.warning("event %s of %s was not taken: %s", reason, service.metadata.name, error)

    async def _report_unreadable(self, key: ServiceKey, record: ServiceRecord, problem: str) -> None:
        """Says in the status what is wrong with a spec that cannot be read; pods and limits stay as they are."""
        pods = self._cache.pods(key)
        findings = unreadable(sum(_serves(pod) for pod in pods), problem)
        status = unreadable_status(record, findings, pods, datetime.now(UTC))
        live = await self._api.patch_status(record, status.to_dict())
        if live is not None:
            logger.warning("%s: %s", key, findings[0].message)
            self._cache.put(KIND, live)
        transition = ready_transition(record.status, status)
        if transition is not None:
            await self._api.event(record, *transition)


def _serves(pod: PodView) -> bool:
    return pod.ready and not pod.deleting and bool(pod.ip)


def _ordered(cache: ClusterCache, key: ServiceKey) -> int:
    """Replicas of the live Deployment; 0 without one."""
    live = cache.child(key, "Deployment", child_names(key.name).main)
    return int(live["spec"].get("replicas", 0)) if live is not None else 0

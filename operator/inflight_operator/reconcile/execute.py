"""Execution of a plan: all calls of a round to the API server and the engines, except status and events."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from zlib import crc32

from inflight_base.kube.errors import KubeApiError
from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import DELETION_COST, KIND, PEERS_ANNOTATION, child_names
from inflight_operator.apply.children import ChildChangedError, ChildrenState, sync_children
from inflight_operator.apply.engines import LimitsPusher
from inflight_operator.apply.kube import OperatorApi
from inflight_operator.clock import Clock
from inflight_operator.observe.cache import ClusterCache
from inflight_operator.observe.pods import PodView
from inflight_operator.reconcile.plan import Child, Outcome, Plan
from inflight_operator.reconcile.snapshot import Snapshot
from inflight_operator.render.deployment import digest
from inflight_operator.render.gateway_slices import slice_names

logger = logging.getLogger(__name__)

SECRET_AGAIN_SECONDS = 60.0
"""Seconds between two writes of the admin token's Secret while a pod does not start or rejects the token: the Secret
may be missing or old, and the operator cannot read it."""


SECRETS_SPREAD_SECONDS = 60.0
"""Seconds over which a new leader writes the Secrets of services that the one before it has brought to their current
spec. It cannot read whether they are as they should be, and nearly all are."""

CALLS_AT_ONCE = 16
"""Most calls in flight that set annotations of a service's pods."""

COSTS_PATIENCE_SECONDS = 120.0
"""Longest wait of a scale-down for deletion costs that the API server does not take."""

TOLD_SECONDS = 2.0
"""Shortest time between two calls that have the files of a loading pod brought up to date."""

_TRANSIENT = (0, 409, 429, 500, 502, 503, 504)
"""HTTP statuses of calls that may succeed if they are repeated; 0: no answer."""


@dataclass(slots=True)
class ExecutorState:
    """State of the executor for one service; all of it can be lost.

    Attributes:
        secret_at: when the admin token's Secret was last written anew.
        secret_due: when it may be written first; None before the first round.
        told: when a loading pod's files were last brought up to date, and to which names of peers, by uid.
        unmarked_since: since when deletion costs are not taken; None while they are. unmarked_last: when the last one
            was not.
    """

    children: ChildrenState = field(default_factory=ChildrenState)
    secret_at: float = float("-inf")
    secret_due: float | None = None
    told: dict[str, tuple[float, str]] = field(default_factory=dict)
    unmarked_since: float | None = None
    unmarked_last: float = float("-inf")


class Executor:
    def __init__(self, api: OperatorApi, cache: ClusterCache, pusher: LimitsPusher, clock: Clock) -> None:
        self._clock = clock
        self._api = api
        self._cache = cache
        self._pusher = pusher

    async def execute(self, key: ServiceKey, snapshot: Snapshot, plan: Plan, state: ExecutorState) -> Outcome:
        """Executes all parts, even if some fail."""
        self._pusher.keep(key, {pod.uid for pod in snapshot.pods})
        for pod, limits in plan.push:
            self._pusher.push(key, pod, snapshot.admin_token, limits)
        failures, unmarked = await self._mark(key, plan, state)
        if plan.hold_template and not unmarked:
            failures |= await self._scale(key, snapshot, plan, state)
        failures |= await self._sync(key, snapshot, plan, state, unmarked=unmarked)
        await self._tell(key, snapshot, plan, state)
        return Outcome({**failures, **state.children.failures}, failed=bool(failures))

    async def _mark(self, key: ServiceKey, plan: Plan, state: ExecutorState) -> tuple[dict[Child, str], bool]:
        """Sets pod deletion costs before a scale-down; not again while the scale-down is refused.

        Returns:
            The failure, and whether the scale-down waits for the next round, which may succeed: without its cost, a
            busy pod may be deleted. It waits `COSTS_PATIENCE_SECONDS` at most, and later ones no more, until costs are
            taken again or none was set for as long.
        """
        if ("Deployment", child_names(key.name).main) in state.children.refused:
            return {}, False
        at_once = asyncio.Semaphore(CALLS_AT_ONCE)

        async def mark(pod: str, cost: int) -> KubeApiError | None:
            async with at_once:
                try:
                    await self._api.annotate_pod(key.namespace, pod, DELETION_COST, str(cost))
                except KubeApiError as error:
                    return error
                return None

        found = await asyncio.gather(*(mark(pod, cost) for pod, cost in plan.deletion_costs.items()))
        errors = [error for error in found if error is not None]
        if not errors:
            if found:
                state.unmarked_since = None
            return {}, False
        logger.warning("%s: %d of %d deletion costs: %s", key, len(errors), len(found), errors[0])
        now = self._clock.steady()
        if state.unmarked_since is None or now - state.unmarked_last > COSTS_PATIENCE_SECONDS:
            state.unmarked_since = now
        state.unmarked_last = now
        waits = any(one.status in _TRANSIENT for one in errors)
        said = str(errors[0])
        if waits and now - state.unmarked_since >= COSTS_PATIENCE_SECONDS:
            waits, said = False, f"replicas are removed without the order of pods, as it cannot be set: {said}"
        return {("Pod", "deletion cost"): said}, waits

    async def _tell(self, key: ServiceKey, snapshot: Snapshot, plan: Plan, state: ExecutorState) -> None:
        """Lets pods that load their model read the names of their peers now: the kubelet would bring the files of a
        ConfigMap up to date within about a minute (measured: 60 s, and 0.4 s so). A failure costs no more than that.

        Call it once the ConfigMap is written. The kubelet watches pods and ConfigMaps apart, and reads the ConfigMap
        when its loops over volumes, every 100 ms each, come to the pod: the names are there by then."""
        if not plan.loading or ("ConfigMap", child_names(key.name).limits) in state.children.refused:
            return
        now, names, at_once = self._clock.steady(), digest(plan.peers), asyncio.Semaphore(CALLS_AT_ONCE)
        state.told = {pod.uid: state.told[pod.uid] for pod in plan.loading if pod.uid in state.told}

        async def tell(pod: PodView) -> None:
            state.told[pod.uid] = now, names
            async with at_once:
                try:
                    await self._api.annotate_pod(key.namespace, pod.name, PEERS_ANNOTATION, names)
                except KubeApiError as error:
                    logger.info("%s: files of %s: %s", key, pod.name, error)
                    if error.status in _TRANSIENT:
                        state.told[pod.uid] = now, ""

        behind = []
        for pod in plan.loading:
            told_at, told = state.told.get(pod.uid, (float("-inf"), ""))
            if told != names and now - told_at >= TOLD_SECONDS:
                behind.append(pod)
        await asyncio.gather(*(tell(pod) for pod in behind))

    async def _scale(self, key: ServiceKey, snapshot: Snapshot, plan: Plan, state: ExecutorState) -> dict[Child, str]:
        """Sets the replicas of a Deployment whose pod template is held, and the bounds of the rollout that it may be
        in."""
        name, wanted, now = child_names(key.name).main, _beside_template(snapshot, plan), self._clock.steady()
        child = ("Deployment", name)
        if snapshot.deployment is None or _has(snapshot.deployment, wanted):
            state.children.refused.pop(child, None)
            return {}
        if state.children.rests(child, wanted, now):
            return {}
        try:
            live = await self._api.set_in_deployment(key.namespace, name, wanted)
            self._cache.put("Deployment", live)
            if not _has(live, wanted):
                raise ChildChangedError(f"Deployment {name} is changed by something else in the cluster")
        except (KubeApiError, ChildChangedError) as error:
            state.children.refuse(child, wanted, error, now)
            logger.warning("%s: %s", key, error)
            return {child: str(error)}
        state.children.refused.pop(child, None)
        logger.info("%s: set %s of Deployment/%s", key, wanted, name)
        return {}

    async def _sync(
        self, key: ServiceKey, snapshot: Snapshot, plan: Plan, state: ExecutorState, *, unmarked: bool
    ) -> dict[Child, str]:
        """Applies and deletes children. `unmarked`: the Deployment, with fewer replicas, waits."""
        deployment = ("Deployment", child_names(key.name).main)
        now = self._clock.steady()
        waiting = any(pod.phase == "Pending" and pod.node and not pod.deleting for pod in snapshot.pods)
        unknown = any("HTTP 401" in one.error for one in snapshot.pushes.values())
        if (waiting or unknown) and now - state.secret_at > SECRET_AGAIN_SECONDS:
            state.children.unread.clear()
            state.secret_at = state.secret_due = now
        if state.secret_due is None:
            spread = crc32(f"{key}".encode()) / 2**32 * SECRETS_SPREAD_SECONDS
            state.secret_due = now + (spread if _was_complete(snapshot) else 0.0)
        later = {"Deployment"} if unmarked else set()
        if now < state.secret_due:
            later.add("Secret")
        changes = await sync_children(
            self._api,
            [one for one in plan.children if one["kind"] not in later],
            self._cache.children(key),
            state.children,
            self._clock.steady,
            keep=_kept(key, snapshot, plan) | ({deployment} if unmarked else frozenset()),
        )
        for live in changes.applied:
            self._cache.put(live["kind"], live)
            logger.info("%s: applied %s/%s", key, live["kind"], live["metadata"]["name"])
        for kind, name in changes.deleted:
            logger.info("%s: deleted %s/%s", key, kind, name)
        for (kind, name), error in changes.failed.items():
            logger.warning("%s: %s/%s: %s", key, kind, name, error)
        return {child: str(error) for child, error in changes.failed.items()}


def _was_complete(snapshot: Snapshot) -> bool:
    """Returns True if an operator has written all children for the service's current spec."""
    service = snapshot.service
    return snapshot.deployment is not None and service.status.observed_generation == service.metadata.generation


def _beside_template(snapshot: Snapshot, plan: Plan) -> Manifest:
    """Returns the fields of the Deployment's spec that change while its pod template is held. A rollout that waits for
    room gets the pace that the spec permits now; the pace of a spec that cannot be read stays."""
    if snapshot.unread or plan.memory.rendered is None:
        return {"replicas": plan.replicas}
    rendered = next(child for child in plan.memory.rendered.children if child["kind"] == "Deployment")
    return {"replicas": plan.replicas, "strategy": rendered["spec"]["strategy"]}


def _has(deployment: Manifest, fields: Manifest) -> bool:
    return all(deployment["spec"].get(name) == value for name, value in fields.items())


def _kept(key: ServiceKey, snapshot: Snapshot, plan: Plan) -> frozenset[Child]:
    """Returns the live children that the plan does not name and that stay."""
    names = child_names(key.name)
    kept: set[Child] = {("NetworkPolicy", names.main)}  # every service has one
    if plan.hold_template:
        kept.add(("Deployment", names.main))
    unread = any(note.startswith("spec.disaggregation") for note in snapshot.unread)
    if unread or (snapshot.unread and snapshot.service.spec.disaggregation.mode != "Off"):
        kept.add((KIND, names.prefill))
    if plan.front.hold:
        kept.add(("Service", names.main))
    if plan.front.keep:
        kept |= {("EndpointSlice", name) for name in slice_names(names.front)}
    if snapshot.policy.inference_pool and not snapshot.gateway_pods:
        # No gateway pod is known to be ready: the picker keeps the endpoints that it has.
        kept |= {("EndpointSlice", name) for name in slice_names(names.picker)}
    return frozenset(kept)

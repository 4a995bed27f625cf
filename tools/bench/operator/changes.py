"""The phases whose figures have bounds: rollouts, an upgrade of the engine with a service that is stuck, and two
installations side by side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, inf
from time import monotonic

from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import KIND
from inflight_base.manifest.pods import condition
from inflight_operator.reconcile.reporter import NUMBERS_SECONDS
from inflight_operator.reconcile.upgrades import SERVICES_AT_ONCE
from tools.bench.operator import fleet
from tools.bench.operator.figures import Finding
from tools.bench.operator.fleet import Fleet
from tools.bench.operator.operators import NAMESPACE, NEXT_ENGINE_IMAGE, SECOND, SECOND_NAMESPACE, Operators
from tools.bench.operator.phases import QUIET_SECONDS, Bench
from tools.bench.operator.plane import OPERATOR_USER, SECOND_USER
from tools.bench.operator.readings import AuditLog
from tools.localcluster.programs import kubectl_program

START_UP = 10
"""Seconds in which a pod of a rollout starts up: most of what a wave takes."""
ROLLOUT_MARGIN = 10.0
"""Seconds that pods may take beyond their start-up."""
STUCK_AFTER = START_UP + 60 + 20.0
"""Seconds without progress after which a service is Stuck: its deadline, and a round."""
PERCENT = 10
"""Pods that a rollout replaces at a time, of each 100."""
REST = 60.0
"""Seconds in which two installations write nothing."""
PATIENCE = 1800.0
SECOND_CLASS = "second"

_FULL_NODE = "fake-0"
"""The only node with accelerators, for the one service that asks for them."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Bounds that follow from spec.rollout.

    Attributes:
        rollout: the fields of the spec.
        waves: most waves of start-up that it needs.
        fewest_ready: fewest pods that are Ready at any moment.
    """

    rollout: Manifest
    waves: int
    fewest_ready: int

    @staticmethod
    def of(strategy: str, replicas: int) -> Pace:
        """The pace of `PERCENT`: extra pods are rounded up, missing ones down to at least one."""
        share = f"{PERCENT}%"
        if strategy == "SurgeFirst":
            at_once = ceil(replicas * PERCENT / 100)
            return Pace(
                {"strategy": strategy, "maxSurge": share, "maxUnavailable": 0}, ceil(replicas / at_once), replicas
            )
        at_once = max(1, replicas * PERCENT // 100)
        rollout = {"strategy": strategy, "maxSurge": 0, "maxUnavailable": share}
        return Pace(rollout, ceil(replicas / at_once), replicas - at_once)


async def rollout(bench: Bench) -> list[Finding]:
    """Replaces the first service's pods, once with additional pods and once with missing ones."""
    key, replicas = bench.services[0], bench.options.pods_per_service
    findings = []
    for strategy in ("SurgeFirst", "ReleaseFirst"):
        pace = Pace.of(strategy, replicas)
        bench.progress(f"phase rollout: {strategy} of {replicas} pods, {pace.waves} waves")
        env = [{"name": "START_UP", "value": f"{START_UP}s"}, {"name": "STRATEGY", "value": strategy}]
        fewest = replicas

        def count(touched: ServiceKey) -> None:
            nonlocal fewest
            if touched == key:
                fewest = min(fewest, sum(pod.ready for pod in bench.fleet.pods(key)))

        with bench.fleet.observed(count):
            seconds = await _replaced(bench, key, {"rollout": pace.rollout, "template": {"env": env}})
        findings += [
            Finding("rollout", f"{strategy}, s", seconds, most=pace.waves * START_UP + ROLLOUT_MARGIN),
            Finding("rollout", f"{strategy}, waves of {START_UP} s", seconds / START_UP),
            Finding("rollout", f"{strategy}, fewest Ready", fewest, least=pace.fewest_ready),
        ]
    return findings


@dataclass
class Moves:
    """Services that move to the newer engine release, as seen by a watch of their Deployments.

    Attributes:
        moving: those that have begun and are not done.
        most: the most that were moving at once.
        done: steady times, by service.
    """

    fleet: Fleet
    moving: set[ServiceKey] = field(default_factory=set)
    most: int = 0
    done: dict[ServiceKey, float] = field(default_factory=dict)

    def changed(self, key: ServiceKey) -> None:
        """Looks at a service that an event was about."""
        deployed = self.fleet.deployed(key)
        if deployed is None or deployed.image != NEXT_ENGINE_IMAGE or key in self.done:
            return
        if deployed.complete:
            self.done[key] = monotonic()
            self.moving.discard(key)
        else:
            self.moving.add(key)
            self.most = max(self.most, len(self.moving))


async def upgrade(bench: Bench) -> list[Finding]:
    """Starts the operator again with a newer engine; the last service's additional pod finds no node."""
    *others, stuck = bench.services
    pods = bench.options.pods_per_service
    bench.progress(f"phase upgrade: {stuck} gets the only {pods} accelerators")
    _accelerators(bench, 2 * pods)
    await _replaced(bench, stuck, {"accelerator": {"count": 1}, "rollout": {"startupTimeout": f"{START_UP}s"}})
    _accelerators(bench, pods)
    await bench.settled(PATIENCE)
    moves, of_stuck = Moves(bench.fleet), Moves(bench.fleet)

    def changed(key: ServiceKey) -> None:
        (of_stuck if key == stuck else moves).changed(key)

    begun = said = inf
    with bench.fleet.observed(changed):
        bench.restart("--engine-image", NEXT_ENGINE_IMAGE)
        start = monotonic()
        while monotonic() - start < PATIENCE and (len(moves.done) < len(others) or said == inf):
            await asyncio.sleep(1)
            if of_stuck.moving and begun == inf:
                begun = monotonic()
                bench.progress(f"{len(moves.done)} services are done, {stuck} has begun")
            if said == inf and (why := await _stuck(bench, stuck)):
                said = monotonic()
                bench.progress(f"{len(moves.done)} services are done, {stuck} is Stuck: {why}")
        ended = max(moves.done.values(), default=inf)
        _accelerators(bench, 2 * pods)
        room = monotonic()
        recovered = await _until(lambda: stuck in of_stuck.done)
    at_once = max(1, SERVICES_AT_ONCE.of(len(bench.services)))
    return [
        Finding("upgrade", "services done beside the one that is stuck", len(moves.done), least=len(others)),
        Finding("upgrade", "seconds until the last of them", ended - start),
        Finding("upgrade", "most that moved at once", moves.most, most=at_once),
        Finding("upgrade", "services done after one was Stuck", sum(time > said for time in moves.done.values())),
        Finding("upgrade", "seconds from its first pod to Stuck", said - begun, most=STUCK_AFTER),
        Finding("upgrade", "seconds from room for it until it is done", recovered - room, most=ROLLOUT_MARGIN),
    ]


async def _stuck(bench: Bench, key: ServiceKey) -> str:
    """The message of its condition Stalled once its status calls a service stuck; empty before."""
    body = await bench.api.get(KIND, key.namespace, key.name)
    status = (body or {}).get("status", {})
    if status.get("engine", {}).get("upgrade") != "Stuck":
        return ""
    return str(condition(status, "Stalled")["message"])


async def classes(bench: Bench, second: Operators) -> list[Finding]:
    """Puts an operator of another class, with as many services, beside the first."""
    theirs = fleet.keys(len(bench.services), "other")
    bench.progress(f"phase classes: an operator of class {SECOND_CLASS}, {len(theirs)} services")
    bench.namespaces(theirs)
    audit = AuditLog(bench.audit.path)
    audit.new_calls()
    second.start(SECOND, "--class-name", SECOND_CLASS)
    await fleet.create_all(bench.api, theirs, bench.options.pods_per_service, SECOND_CLASS)
    pods = bench.options.pods_per_service * len(theirs)
    await _until(lambda: sum(pod.ready for key in theirs for pod in bench.fleet.pods(key)) >= pods)
    bench.progress("all pods Ready; waiting until both operators are quiet")
    # Demand that became known in the first minute is written once more, after another one.
    await bench.settled(PATIENCE, quiet=NUMBERS_SECONDS + QUIET_SECONDS)
    before = audit.new_calls()
    bench.progress(f"{REST:g} s at rest")
    await asyncio.sleep(REST)
    rest = audit.new_calls()
    own = {
        OPERATOR_USER: {NAMESPACE, *(key.namespace for key in bench.services)},
        SECOND_USER: {SECOND_NAMESPACE, *(key.namespace for key in theirs)},
    }
    findings = []
    for user, other in ((OPERATOR_USER, SECOND_USER), (SECOND_USER, OPERATOR_USER)):
        written = [call for call in before + rest if call.is_write and call.user == user]
        at_rest = [call for call in rest if call.is_write and call.user == user and call.resource != "leases"]
        foreign = sum(call.namespace in own[other] for call in written)
        findings += [
            Finding("classes", f"{user}: writes in the other's namespaces", foreign, most=0),
            Finding("classes", f"{user}: writes at rest, Leases left out", len(at_rest), most=0),
            Finding("classes", f"{user}: writes in all", len(written), least=1),
        ]
    return findings


async def _replaced(bench: Bench, key: ServiceKey, spec: Manifest) -> float:
    """Changes a spec; seconds until none of the former pods is left and all pods are Ready."""
    before = {pod.uid for pod in bench.fleet.pods(key)}
    start = monotonic()
    await bench.api.patch(KIND, key.namespace, key.name, {"spec": spec})

    def replaced() -> bool:
        pods = bench.fleet.pods(key)
        return all(pod.ready and pod.uid not in before for pod in pods) and len(pods) >= len(before)

    return await _until(replaced) - start


async def _until(reached: Callable[[], bool]) -> float:
    """Waits; returns the steady time at which it was so, infinity where it never was."""
    start = monotonic()
    while monotonic() - start < PATIENCE:
        if reached():
            return monotonic()
        await asyncio.sleep(0.1)
    return inf


def _accelerators(bench: Bench, count: int) -> None:
    """Sets the number of accelerators of the one node that has any."""
    said = {"nvidia.com/gpu": str(count)}
    patch = json.dumps({"status": {"capacity": said, "allocatable": said}})
    arguments = ("patch", "node", _FULL_NODE, "--subresource=status", "--type=merge", f"--patch={patch}")
    kubectl_program.run(bench.kubeconfig, arguments)

"""A Deployment on nodes with so many accelerators, in virtual time.

The controllers are those of Kubernetes 1.34, in a few lines: `rolling.go`, `sync.go` and `deployment_util.go` of
pkg/controller/deployment, and the ReplicaSet controller's order of deletions.
"""

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from inflight_operator.api.types import InferenceService
from inflight_operator.decide.rollouts import releases
from inflight_operator.observe.pods import PodView
from inflight_operator.reconcile.policy import policy_of
from inflight_operator.reconcile.snapshot import deployment_view
from inflight_operator.render.service_children import render
from tests.operator.fakes import service_body
from tests.operator.render.services import PLAN, SETTINGS

FULL = "0/9 nodes are available: 9 Insufficient nvidia.com/gpu. preemption: 0/9 nodes are available: 9 No preemption"
NO_NODE = "0/9 nodes are available: 9 node(s) didn't match Pod's node affinity/selector. preemption: 0/9 nodes are"


@dataclass(eq=False)
class Pod:
    """Attributes:
    template: number of its template; a larger one is newer.
    placed_at, leaves_at: when it got its accelerator, and when it gives it back.
    start_up: seconds from its node to ready.
    """

    template: int
    created: float
    start_up: float
    placed_at: float | None = None
    leaves_at: float | None = None
    unready_until: float = 0.0

    def ready(self, now):
        started = self.placed_at is not None and now - self.placed_at >= self.start_up
        return started and now >= self.unready_until and self.leaves_at is None


class Cluster:
    """Args:
    rollout: `spec.rollout` of the service.
    accelerators: pods that may have a node at a time.
    start_up: seconds from node to ready of the next pod.
    drain: seconds for which a pod that is deleted keeps its accelerator.
    """

    def __init__(self, replicas, rollout=None, *, accelerators=10**6, start_up=60.0, drain=20.0):
        spec = {"rollout": rollout or {}, "scaling": {"maxReplicas": 1000}}
        self.service = InferenceService.from_dict(service_body(spec=spec))
        self.policy = policy_of(self.service, SETTINGS)
        self.replicas, self.accelerators, self.start_up, self.drain = replicas, accelerators, start_up, drain
        self.now = 1000.0
        self.newest = 1
        self.sizes, self.scaled_to = {1: replicas}, replicas
        self.pods = [Pod(1, 0.0, 0.0, placed_at=0.0) for _ in range(replicas)]
        self.progress, self.progress_at = None, self.now
        self.no_node, self.gates = False, ()
        self.released = False
        self.lowest = self.highest = 0
        self.operator()

    def roll_out(self):
        """A new pod template."""
        self.newest += 1
        self.sizes[self.newest] = 0
        self.progress_at = self.now
        self.lowest, self.highest = self.ready, len(self.alive)

    @property
    def alive(self):
        return [pod for pod in self.pods if pod.leaves_at is None]

    @property
    def ready(self):
        return sum(pod.ready(self.now) for pod in self.pods)

    @property
    def done(self):
        updated = [pod for pod in self.alive if pod.template == self.newest and pod.ready(self.now)]
        return len(updated) == len(self.alive) == self.replicas

    @property
    def bounds(self):
        """Pods beyond the replicas, and missing ones: `ResolveFenceposts`."""
        surge = _resolved(self.rolling["maxSurge"], self.replicas, math.ceil)
        unavailable = _resolved(self.rolling["maxUnavailable"], self.replicas, math.floor)
        return surge, max(unavailable, 0 if surge else 1)

    def tick(self, seconds=1.0):
        self.now += seconds
        self.pods = [pod for pod in self.pods if pod.leaves_at is None or pod.leaves_at > self.now]
        self.operator()
        before = None
        while before != self.sizes:
            before = dict(self.sizes)
            self.deployment_controller()
            self.replica_set_controller()
        free = self.accelerators - sum(pod.placed_at is not None for pod in self.pods)
        waiting = [pod for pod in self.alive if pod.placed_at is None and not (self.no_node and pod.template > 1)]
        for pod in waiting[: max(0, free)]:
            pod.placed_at = self.now
        updated = [pod for pod in self.alive if pod.template == self.newest]
        progress = (self.newest, len(updated), sum(pod.ready(self.now) for pod in updated), len(self.alive))
        if progress != self.progress:
            self.progress, self.progress_at = progress, self.now
        self.lowest, self.highest = min(self.lowest, self.ready), max(self.highest, len(self.alive))

    def operator(self):
        """A round: the bounds that the operator renders now."""
        view = deployment_view(self.manifest(), self.replicas) if hasattr(self, "rolling") else None
        self.released = releases(self.policy.release_after, view, map(self.view, self.pods), self.now)
        children = render(self.service, replace(PLAN, replicas=self.replicas, release=self.released), SETTINGS)
        (deployment,) = (child for child in children if child["kind"] == "Deployment")
        self.rolling = deployment["spec"]["strategy"]["rollingUpdate"]

    def manifest(self):
        updated = sum(pod.template == self.newest for pod in self.alive)
        at = datetime.fromtimestamp(self.progress_at, UTC).isoformat()
        progressing = {"type": "Progressing", "reason": "ReplicaSetUpdated", "lastUpdateTime": at}
        return {
            "metadata": {},
            "spec": {"strategy": {"rollingUpdate": self.rolling}},
            "status": {"replicas": len(self.alive), "updatedReplicas": updated, "conditions": [progressing]},
        }

    def view(self, pod):
        name, waits = str(id(pod)), pod.placed_at is None
        return PodView(
            name=name,
            uid=name,
            ip="10.0.0.1",
            node="" if waits else "node",
            ready=pod.ready(self.now),
            metrics_port=1,
            admin_port=1,
            created=pod.created,
            deleting=pod.leaves_at is not None,
            unschedulable="" if not waits or self.gates else NO_NODE if self.no_node else FULL,
            gates=self.gates if waits else (),
        )

    def deployment_controller(self):
        if self.scaled_to != self.replicas:
            self._scale_in_proportion()
        elif not self._scale_up_newest():
            self._scale_down_old()

    def _scale_in_proportion(self):
        """`scale`: a change of the replicas in mid-rollout is shared by the ReplicaSets."""
        surge, before = self.bounds[0], self.scaled_to + _resolved(self.rolling["maxSurge"], self.scaled_to, math.ceil)
        allowed, self.scaled_to = self.replicas + surge if self.replicas else 0, self.replicas
        active = [template for template, size in self.sizes.items() if size]
        if len(active) <= 1:
            self.sizes[active[0] if active else self.newest] = self.replicas
            return
        rest = allowed - sum(self.sizes.values())
        for template in sorted(active, key=lambda one: self.sizes[one], reverse=rest > 0):
            share = round(self.sizes[template] * allowed / before) - self.sizes[template]
            share = min(max(share, 0), rest) if rest > 0 else max(min(share, 0), rest)
            self.sizes[template] += share
            rest -= share
        largest = max(active, key=lambda one: self.sizes[one])
        self.sizes[largest] = max(0, self.sizes[largest] + rest)

    def _scale_up_newest(self):
        """`reconcileNewReplicaSet`."""
        size, surge = self.sizes[self.newest], self.bounds[0]
        if size >= self.replicas:
            self.sizes[self.newest] = self.replicas
            return size > self.replicas
        room = self.replicas + surge - sum(self.sizes.values())
        self.sizes[self.newest] += max(0, min(room, self.replicas - size))
        return room > 0

    def _scale_down_old(self):
        """`reconcileOldReplicaSets`: those that are not available first."""
        least = self.replicas - min(self.bounds[1], self.replicas)
        missing = self.sizes[self.newest] - self._available(self.newest)
        most = sum(self.sizes.values()) - least - missing
        old = [template for template, size in self.sizes.items() if template != self.newest and size]
        for template in old if most > 0 else ():
            removed = min(most, self.sizes[template] - self._available(template))
            self.sizes[template] -= max(0, removed)
            most -= max(0, removed)
        self.replica_set_controller()
        spare = sum(map(self._available, self.sizes)) - least
        for template in old if most > 0 else ():
            removed = max(0, min(spare, self.sizes[template]))
            self.sizes[template] -= removed
            spare -= removed

    def _available(self, template):
        return sum(pod.ready(self.now) for pod in self.alive if pod.template == template)

    def replica_set_controller(self):
        for template, size in self.sizes.items():
            pods = [pod for pod in self.alive if pod.template == template]
            self.pods += [Pod(template, self.now, self.start_up) for _ in range(size - len(pods))]
            doomed = sorted(pods, key=lambda pod: (pod.placed_at is not None, pod.ready(self.now), -pod.created))
            for pod in doomed[: max(0, len(pods) - size)]:
                pod.leaves_at = self.now + (self.drain if pod.placed_at is not None else 0.0)


def _resolved(share, replicas, rounded):
    return share if isinstance(share, int) else rounded(replicas * int(share.removesuffix("%")) / 100)

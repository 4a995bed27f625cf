"""Rollouts in a full cluster: where no node has room for additional pods, old pods are removed first."""

from __future__ import annotations

from collections.abc import Iterable

from inflight_operator.decide.status.conditions import DeploymentView
from inflight_operator.decide.status.pod_problems import QUEUE_GATES
from inflight_operator.observe.pods import PodView

_ROOM = ("Insufficient ", "anti-affinity", "topology spread", "No preemption victims")
"""Parts of the scheduler's message on a pod that a node could take once others leave it. No removal helps a pod whose
node selector or tolerations match no node."""


def releases(after: float | None, rollout: DeploymentView | None, pods: Iterable[PodView], now: float) -> bool:
    """Returns True if the rollout removes old pods before it starts new ones. That lasts until it is complete: the
    first pod that gets a node would end it otherwise.

    Args:
        after: seconds without progress until then; None: never.
        pods: all pods of the service.
        now: seconds since the epoch.
    """
    if after is None or rollout is None or rollout.rolled_out:
        return False
    if not rollout.surges:
        return True
    quiet = rollout.current and (rollout.progress_at is None or now - rollout.progress_at >= after)
    return quiet and any(_waits_for_room(pod) and now - pod.created >= after for pod in pods)


def _waits_for_room(pod: PodView) -> bool:
    queued = any(gate.startswith(QUEUE_GATES) for gate in pod.gates)
    room = queued or any(part in pod.unschedulable for part in _ROOM)
    return room and not pod.node and not pod.deleting

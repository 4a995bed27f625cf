"""The decisions' view of prefetching: where a model may be fetched to, and the Jobs that fetch it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import PREFETCH_PLACE, PREFETCH_RUN, PREFETCH_TEMPLATE
from inflight_base.manifest.pods import condition
from inflight_contract.prefetch import PrefetchReport, read_report
from inflight_operator.observe.pods import PodView

Obstacle = Literal["", "NodesUnknown", "NoNode", "TooManyNodes", "NoClaim", "ClaimUnknown", "ClaimOfOneNode"]
"""Why there is no place: the nodes are not known, none is selected, or too many; the claim of the model cache does not
exist, is not known, or only pods of one node can write to it."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where a model is fetched to.

    Attributes:
        names: nodes, or the claim that all nodes share.
        obstacle: why there are none; empty if there are.
        said: what the sentence about the obstacle names: the error of the API server, or the claim.
        shared: whether all nodes share the one place.
    """

    names: tuple[str, ...] = ()
    obstacle: Obstacle = ""
    said: str = ""
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """A Job that fetches the model to one place.

    Attributes:
        place: node, or the shared claim.
        run: what it fetches; see `decide.prefetch`.
        template: identity of its pod template.
        state: leaving: it is being deleted, or was, and its pod is still there.
        pod: its newest pod; None without one.
        report: what its pod found; None unless the Job is done.
        failure: why the Job failed, in the words of Kubernetes.
        ended: time of its failure, seconds since the epoch; 0 unless it failed.
    """

    place: str
    run: str
    template: str
    state: Literal["running", "done", "failed", "leaving"] = "running"
    pod: PodView | None = None
    report: PrefetchReport | None = None
    failure: str = ""
    ended: float = 0.0


def fetches_of(jobs: Iterable[Manifest], pods: Mapping[str, PodView]) -> tuple[Fetch, ...]:
    """Returns the views of Jobs, and of pods that are left of Jobs that were deleted.

    Args:
        pods: the newest pod of each, by the name of the Job.
    """
    found = {job["metadata"]["name"]: _fetch(job, pods.get(job["metadata"]["name"])) for job in jobs}
    left = (pod for name, pod in pods.items() if name not in found and pod.phase in ("Pending", "Running"))
    return (*found.values(), *(Fetch(pod.node, "", "", "leaving", pod) for pod in left))


def _fetch(job: Mapping[str, Any], pod: PodView | None) -> Fetch:
    metadata, status = job["metadata"], job.get("status") or {}
    notes = metadata.get("annotations") or {}
    place, run, template = (str(notes.get(name, "")) for name in (PREFETCH_PLACE, PREFETCH_RUN, PREFETCH_TEMPLATE))
    if "deletionTimestamp" in metadata:
        return Fetch(place, run, template, "leaving", pod)
    failed, complete = condition(status, "Failed"), condition(status, "Complete")
    if failed.get("status") == "True":
        ended = datetime.fromisoformat(failed["lastTransitionTime"]).timestamp()
        return Fetch(place, run, template, "failed", pod, failure=str(failed.get("message", "")), ended=ended)
    # The pod's end may reach the operator after the Job's.
    if complete.get("status") == "True" and (pod is None or pod.exit_code is not None):
        return Fetch(place, run, template, "done", pod, None if pod is None else read_report(pod.last_message))
    return Fetch(place, run, template, "running", pod)

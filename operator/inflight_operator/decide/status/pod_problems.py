"""The reason why a pod does not serve, as one actionable sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from inflight_base.manifest.names import MODEL_CACHE_VOLUME, MODEL_CONTAINER, MODEL_VOLUME, PLUGIN_CONTAINER
from inflight_operator.observe.pods import PodView

_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_CREATE_REASONS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_INSUFFICIENT = re.compile(r"Insufficient ([-./a-zA-Z0-9]+?)[.,]?(?:\s|$)")
_ERROR_LINE = re.compile(r"^(?:inflight-engine: )?error: (.+)$", re.MULTILINE)
_INIT_IMAGES = {
    PLUGIN_CONTAINER: (
        " of the init container that brings Inflight's plugin for vLLM",
        "the operator's --plugin-image (chart values image.repository and image.tag)",
    ),
    MODEL_CONTAINER: (
        " of the init container that writes the built-in model",
        "the operator's --engine-image (chart values engine.image.repository and engine.image.tag)",
    ),
}
"""For each init container of the operator: what it does, and where its image is set."""

QUEUE_GATES = "kueue.x-k8s.io/"
"""Begin of the names of Kueue's scheduling gates, which it removes once a pod's queue has quota for it."""

_CLAIM = "take the namespace out of engine.modelCache.namespaces of the chart"
_FOLDER = "; engine.modelCache.hostPath of the chart must be a folder of the node with mode 0777"

_MISSING_SECRET = re.compile(r'secret "([^"]+)" not found')

_MODEL_DISK = re.compile(f'EmptyDir volume "{MODEL_VOLUME}" exceeds the limit')

DISK_FULL = "DiskFull"

_TAIL = 300
"""Maximum characters of a container's last log line in a message."""


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """Names used in the sentences.

    Attributes:
        source: `spec.model.source`.
        accelerator: resource name of the accelerator; empty if the service requests none.
        memory_limit: memory limit of the engine container, such as `4Gi`; empty without one.
        cache_claim: claim with the model cache; empty if the pods use none.
        credentials: `spec.model.credentialsSecret`; empty without one.
    """

    source: str
    accelerator: str
    memory_limit: str
    cache_claim: str = ""
    credentials: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Attributes:
    rank: how much user action it needs; the largest is reported first.
    reason: CamelCase.
    stage: the stage that fails: `schedule`, `start`, `load` or `serve`.
    text: without the count of pods: "waits for nvidia.com/gpu: ...".
    blocking: does not resolve without intervention.
    """

    rank: int
    reason: str
    stage: str
    text: str
    blocking: bool = True


def pod_problem(pod: PodView, facts: ServiceFacts) -> Problem | None:
    """Returns the reason why this pod takes no requests; None if it does, or if it is terminating."""
    if pod.ready or pod.deleting:
        return None
    for rule in _RULES:
        problem = rule(pod, facts)
        if problem is not None:
            return problem
    return Problem(0, "Loading", "load", "is loading the model", blocking=False)


def _image(pod: PodView, facts: ServiceFacts) -> Problem | None:
    if pod.waiting_reason not in _IMAGE_REASONS:
        return None
    said = _one_line(pod.waiting_message) or pod.waiting_reason
    model = facts.source.removeprefix("oci://")
    if model != facts.source and model in said and pod.image not in said:
        text = f"cannot pull the model's image: {said}; correct model.source, or give template.imagePullSecrets"
        return Problem(90, "ImagePullFailed", "start", text)
    what, correct = _INIT_IMAGES.get(pod.init_container, ("", "engine.image"))
    text = f"cannot pull image {pod.image}{what}: {said}; correct {correct}, or give template.imagePullSecrets"
    return Problem(90, "ImagePullFailed", "start", text)


def _create(pod: PodView, facts: ServiceFacts) -> Problem | None:
    if pod.waiting_reason not in _CREATE_REASONS:
        return None
    said = _one_line(pod.waiting_message) or pod.waiting_reason
    remedy = _FOLDER if MODEL_CACHE_VOLUME in said else ""
    if missing := _MISSING_SECRET.search(said):
        named = "model.credentialsSecret" if missing[1] == facts.credentials else "its name in template"
        remedy = f"; create it, or correct {named}"
    text = f"cannot start its container: {said}{remedy}"
    return Problem(85, "ContainerNotCreated", "start", text)


def _memory(pod: PodView, facts: ServiceFacts) -> Problem | None:
    if pod.last_reason != "OOMKilled":
        return None
    limit = f"its limit of {facts.memory_limit}" if facts.memory_limit else "what the node has"
    text = f"was killed for using more memory than {limit}; raise template.resources.limits.memory, or lower"
    return Problem(80, "OOMKilled", "load", f"{text} engine.maxModelLen or engine.kvCache.memory")


def _engine_error(pod: PodView, facts: ServiceFacts) -> Problem | None:
    """The engine's own last sentence (`error: ...`, or a JSON line of level CRITICAL), kept by Kubernetes as the
    termination message."""
    if pod.exit_code in (None, 0):
        return None
    said = _ERROR_LINE.findall(pod.last_message) or _critical_lines(pod.last_message)
    return Problem(75, "EngineFailed", "load", f"failed to start: {said[-1].strip()}") if said else None


def _critical_lines(text: str) -> list[str]:
    """Messages of level CRITICAL in JSON lines: the last sentence of an engine with logs.format json. Kubernetes keeps
    the end of a log, so the first line may be cut."""
    said = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("level") == "CRITICAL" and isinstance(record.get("message"), str):
            said.append(record["message"])
    return said


def _crash(pod: PodView, facts: ServiceFacts) -> Problem | None:
    if pod.exit_code is None:
        return None
    times = f"{pod.restarts} restart{'s' if pod.restarts != 1 else ''}"
    last = _one_line(pod.last_message)[-_TAIL:]
    container = f" -c {pod.init_container}" if pod.init_container else ""
    words = f"; its last output: {last}" if last else f"; see kubectl logs {pod.name}{container} --previous"
    return Problem(70, "EngineCrashes", "load", f"ended with exit code {pod.exit_code} ({times}){words}")


def _disk(pod: PodView, facts: ServiceFacts) -> Problem | None:
    """Evicted by the kubelet, as the model that the engine downloads is larger than its volume."""
    if not _MODEL_DISK.search(pod.failure):
        return None
    text = f"was evicted: {_one_line(pod.failure).rstrip('.')}; raise model.storage"
    return Problem(65, DISK_FULL, "load", text)


def _failed(pod: PodView, facts: ServiceFacts) -> Problem | None:
    if pod.phase != "Failed":
        return None
    return Problem(
        60, "PodFailed", "serve", f"failed: {_one_line(pod.failure) or 'no reason is given'}", blocking=False
    )


def _unschedulable(pod: PodView, facts: ServiceFacts) -> Problem | None:
    if not pod.unschedulable:
        return None
    # After the first sentence the scheduler's message is about preemption, which is not relevant here.
    said = re.split(r"\.\s", pod.unschedulable, maxsplit=1)[0].rstrip(".")
    if "persistentvolumeclaim" in said and "not found" in said:
        of_cache = facts.cache_claim and f'"{facts.cache_claim}"' in said
        correct = _CLAIM if of_cache else f"correct model.source {facts.source}"
        return Problem(55, "ClaimNotFound", "schedule", f"finds no node: {said}; create the claim or {correct}")
    if "unbound immediate PersistentVolumeClaims" in said:
        claim = f" {facts.cache_claim} of the model cache" if facts.cache_claim else ""
        text = f"finds no node: {said}; see why the claim{claim} has no volume (kubectl describe persistentvolumeclaim)"
        return Problem(55, "ClaimNotBound", "schedule", text)
    missing = _INSUFFICIENT.findall(f"{said} ")
    if facts.accelerator and facts.accelerator in missing:
        text = f"waits for {facts.accelerator}: {said}; add a node that has it or set accelerator.count: 0"
        return Problem(50, "Unschedulable", "schedule", text)
    if missing:
        what = " and ".join(dict.fromkeys(missing))
        text = f"waits for {what}: {said}; add a node or lower template.resources.requests"
        return Problem(50, "Unschedulable", "schedule", text)
    text = f"finds no node: {said}; check template.nodeSelector, tolerations and affinity"
    return Problem(50, "Unschedulable", "schedule", text)


def _gated(pod: PodView, facts: ServiceFacts) -> Problem | None:
    if not pod.gates:
        return None
    gates = " and ".join(pod.gates)
    queue = (
        "; its queue of Kueue has no quota for it" if any(gate.startswith(QUEUE_GATES) for gate in pod.gates) else ""
    )
    return Problem(40, "SchedulingGated", "schedule", f"is not scheduled before {gates} is removed{queue}")


def _creating(pod: PodView, facts: ServiceFacts) -> Problem | None:
    if not pod.node:
        return Problem(20, "Scheduling", "schedule", "waits for a node", blocking=False)
    if pod.waiting_reason in ("ContainerCreating", "PodInitializing") or pod.phase == "Pending":
        text = f"is being started on {pod.node}: pulling its image and mounting its volumes"
        return Problem(10, "Starting", "start", text, blocking=False)
    return None


_RULES: tuple[Callable[[PodView, ServiceFacts], Problem | None], ...] = (
    _disk,
    _image,
    _create,
    _memory,
    _engine_error,
    _crash,
    _failed,
    _unschedulable,
    _gated,
    _creating,
)


def _one_line(text: str) -> str:
    return " ".join(text.split())

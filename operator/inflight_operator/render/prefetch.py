"""Jobs that fetch a model to a node, or into a shared claim, before engines need it; and the policy of their pods.

Their pods are those that serve without what serving needs: same image, account, credentials and volumes with the model;
no ports, no accelerator, and no volumes that may be elsewhere. One Job is for one place, so a bound of Jobs is one of
pods. The pods accept no connections.
"""

from __future__ import annotations

from typing import Any

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import (
    MODEL_CACHE_VOLUME,
    MODEL_VOLUME,
    PREFETCH_LABELS,
    PREFETCH_PLACE,
    PREFETCH_RUN,
    PREFETCH_TEMPLATE,
    SERVICE_LABEL,
    child_labels,
    child_names,
)
from inflight_contract.prefetch import REPORT_FILE
from inflight_operator.api.pods.template import MODEL_CACHE_FOLDER, OWN_ENV, OWN_PREFIX
from inflight_operator.api.resolve import model_argument, model_image, startup_limit_seconds
from inflight_operator.api.types import InferenceService
from inflight_operator.render.deployment import digest
from inflight_operator.render.engines.inflight import model_cache
from inflight_operator.render.metadata import child
from inflight_operator.render.networkpolicy import fetches_model
from inflight_operator.render.plan import ChildPlan, Settings
from inflight_operator.render.pod import pod_template

RETRIES = 3
"""Times that a pod that fails is made again, after 10, 20 and 40 seconds; a cache goes on where the last one ended."""

GRACE_SECONDS = 5
"""Seconds from SIGTERM to SIGKILL: what is fetched stays, and there is nothing to finish."""

RESOURCES: Manifest = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
"""The process has 204 MiB resident while it fetches 0.6 GB from a store; pages of files that are written count as
well."""

_POD_FIELDS = (
    "serviceAccountName",
    "automountServiceAccountToken",
    "enableServiceLinks",
    "securityContext",
    "imagePullSecrets",
    "tolerations",
)
_CONTAINER_FIELDS = ("name", "image", "imagePullPolicy", "envFrom", "terminationMessagePolicy", "securityContext")
_MODEL_VOLUMES = ("inflight-scratch", MODEL_VOLUME, "inflight-model-ca", MODEL_CACHE_VOLUME)
_ANYWHERE = {"configMap", "secret", "projected", "downwardAPI", "emptyDir", "csi"}
"""Sources of volumes of `template.volumes` that pods have on every node."""


def shared_claim(service: InferenceService, settings: Settings) -> str:
    """Returns the claim with the model cache that all nodes share; empty: each node has its own copy, or none."""
    cache = model_cache(service, settings)
    return "" if cache is None else cache.claim


def is_cached(service: InferenceService, settings: Settings) -> bool:
    """Returns True if a model that is fetched stays where engines find it."""
    return model_image(service.spec.model.source) is not None or model_cache(service, settings) is not None


def prefetch_jobs(service: InferenceService, plan: ChildPlan, settings: Settings) -> list[Manifest]:
    """Returns a Job for each place of the plan."""
    if service.spec.model.prefetch is None or not plan.prefetch:
        return []
    template = prefetch_template(service, settings)
    return [_job(service, place, plan.prefetch_run, template, settings) for place in plan.prefetch]


def prefetch_policy(service: InferenceService) -> Manifest:
    """Returns the NetworkPolicy of the pods: nobody connects to them. Their egress is open where they read a source
    themselves, as that of engines is; the kubelet pulls images."""
    labels = {**PREFETCH_LABELS, SERVICE_LABEL: service.metadata.name}
    types = ["Ingress"] if fetches_model(service) else ["Ingress", "Egress"]
    name = child_names(service.metadata.name).prefetch
    policy = child("networking.k8s.io/v1", "NetworkPolicy", service, name)
    return {**policy, "spec": {"podSelector": {"matchLabels": labels}, "policyTypes": types}}


def prefetch_template(service: InferenceService, settings: Settings) -> Manifest:
    """Returns the pod template, without the node that it is for."""
    serving = pod_template(service, settings)
    pod, engine = serving["spec"], serving["spec"]["containers"][0]
    volumes = [volume for volume in pod["volumes"] if _is_needed(volume)]
    names = {volume["name"] for volume in volumes}
    container = {
        **{field: engine[field] for field in _CONTAINER_FIELDS if field in engine},
        "command": _command(service, settings),
        "env": [one for one in engine["env"] if one["name"] not in OWN_ENV],
        "resources": RESOURCES,
        "volumeMounts": [mount for mount in engine["volumeMounts"] if mount["name"] in names],
    }
    labels = {**service.spec.template.labels, **child_labels(service.metadata.name), **PREFETCH_LABELS}
    annotations = service.spec.template.annotations
    return {
        "metadata": {"labels": labels, **({"annotations": dict(annotations)} if annotations else {})},
        "spec": {
            **{field: pod[field] for field in _POD_FIELDS if field in pod},
            **(_on_any(service) if shared_claim(service, settings) else {}),
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "containers": [container],
            "volumes": volumes,
        },
    }


def _job(service: InferenceService, place: str, run: str, template: Manifest, settings: Settings) -> Manifest:
    identity = digest(template)
    job = child("batch/v1", "Job", service, _name(service, place, run, identity))
    job["metadata"]["annotations"] = {PREFETCH_PLACE: place, PREFETCH_RUN: run, PREFETCH_TEMPLATE: identity}
    where = {} if shared_claim(service, settings) else _on(place)
    return {
        **job,
        "spec": {
            "backoffLimit": RETRIES,
            "activeDeadlineSeconds": startup_limit_seconds(service.spec),
            "podReplacementPolicy": "Failed",
            "template": {**template, "spec": {**template["spec"], **where}},
        },
    }


def _name(service: InferenceService, place: str, run: str, template: str) -> str:
    """Returns a name of at most 63 characters, which labels of the pods repeat. A Job's template cannot change, so
    another template is another Job."""
    name = service.metadata.name
    return f"{name[:40].rstrip('-')}-fetch-{digest([name, place, run, template])[:10]}"


def _on(node: str) -> Manifest:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


def _on_any(service: InferenceService) -> Manifest:
    asked = service.spec.model.prefetch
    return {"nodeSelector": dict(asked.node_selector)} if asked is not None else {}


def _is_needed(volume: dict[str, Any]) -> bool:
    if volume["name"].startswith(OWN_PREFIX):
        return volume["name"] in _MODEL_VOLUMES
    return bool(_ANYWHERE & volume.keys())


def _command(service: InferenceService, settings: Settings) -> list[str]:
    model, cache = service.spec.model, model_cache(service, settings)
    return [
        "inflight-engine",
        "prefetch",
        model_argument(model),
        f"--report={REPORT_FILE}",
        *([f"--revision={model.revision}"] if model.source.startswith("hf://") else []),
        *([] if cache is None else [f"--model-cache={MODEL_CACHE_FOLDER}", f"--model-cache-size={cache.size}"]),
    ]

"""The Deployment of the service's engines."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import pod_labels
from inflight_operator.api.resolve import rolling_update, startup_limit_seconds
from inflight_operator.api.spec import InferenceServiceSpec
from inflight_operator.api.types import InferenceService
from inflight_operator.render.engine_flags import peers_flags, ttft_flags
from inflight_operator.render.metadata import child
from inflight_operator.render.plan import ChildPlan, Settings
from inflight_operator.render.pod import pod_template

SPEC_DIGEST = "inflight.dev/spec-digest"
"""Annotation of the Deployment: identity of what the spec says about pods, when its pod template was made."""

TEMPLATE_DIGEST = "inflight.dev/template-digest"
"""Annotation of the Deployment: identity of its pod template as it was made, without the API server's defaults."""


def deployment(service: InferenceService, plan: ChildPlan, settings: Settings) -> Manifest:
    """The Deployment with its pod template, and the identity of its inputs."""
    name = service.metadata.name
    bounds = rolling_update(service.spec.rollout, release=plan.release)
    template = pod_template(service, settings)
    manifest = child("apps/v1", "Deployment", service)
    manifest["metadata"]["annotations"] = {
        SPEC_DIGEST: plan.spec_digest,
        TEMPLATE_DIGEST: digest(template),
    }
    return {
        **manifest,
        "spec": {
            "replicas": plan.replicas,
            "selector": {"matchLabels": pod_labels(name)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": bounds.max_surge, "maxUnavailable": bounds.max_unavailable},
            },
            "revisionHistoryLimit": 3,
            # Longer than a pod may take to start, or a slow download would count as a failed rollout.
            "progressDeadlineSeconds": startup_limit_seconds(service.spec) + 60,
            "template": template,
        },
    }


def template_inputs(spec: InferenceServiceSpec) -> str:
    """Identity of the spec fields that the pod template depends on. Only values that differ from the defaults count, so
    that an operator with an additional field computes the same identity. Policy fcfs counts as a default: it was one,
    and the API server has stored it in services that name none."""
    parts = (spec.model, spec.engine, spec.accelerator, spec.rollout, spec.template)
    # The pace of a rollout, and what comes before it: no pod is made of them.
    beside = {"max_surge", "max_unavailable", "release_after", "prefetch"}
    inputs = [part.model_dump(mode="json", exclude_defaults=True, exclude=beside) for part in parts]
    scheduling = inputs[1].get("scheduling", {})
    if scheduling.get("policy") == "fcfs":
        del scheduling["policy"]
        if not scheduling:
            del inputs[1]["scheduling"]
    behind = ["gateway"] if spec.gateway.enabled else []
    queue = [{"queue": spec.queue_name}] if spec.queue_name else []
    sleep = [{"sleep": spec.scaling.sleep.after}] if spec.scaling.sleep is not None else []
    return digest([*inputs, *ttft_flags(spec), *behind, *queue, *sleep, *peers_flags(spec)])


def digest(content: Any) -> str:
    """Sixteen hex digits of the hash of the JSON form."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

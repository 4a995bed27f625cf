"""Merges `spec.template` over the operator's pod template."""

from __future__ import annotations

from typing import Any

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import ENGINE_ANNOTATION, SERVICE_LABEL, pod_labels
from inflight_base.manifest.units import parse_quantity
from inflight_operator.api.pods.template import PodTemplate

_AS_GIVEN = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "serviceAccountName",
    "imagePullSecrets",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "resourceClaims",
)


def merge_template(pod: Manifest, template: PodTemplate) -> Manifest:
    """A new pod template with the user's parts merged; the engine is its first container.

    Labels, environment variables and resources replace the operator's of the same name; volumes and mounts are added
    (the API server rejects conflicting names).
    """
    user: dict[str, Any] = template.model_dump(mode="json", by_alias=True, exclude_none=True)
    engine, *others = pod["spec"]["containers"]
    merged_engine = {
        **engine,
        "env": _by_name(engine["env"], user["env"]),
        "resources": _merge_resources(engine["resources"], user["resources"], user["resourceClaims"]),
        "volumeMounts": engine["volumeMounts"] + user["volumeMounts"],
        **({"envFrom": variables} if (variables := [*engine.get("envFrom", []), *user["envFrom"]]) else {}),
    }
    metadata = {**pod["metadata"], "labels": {**user["labels"], **pod["metadata"]["labels"]}}
    given = {name: text for name, text in user["annotations"].items() if name != ENGINE_ANNOTATION}
    if annotations := {**given, **pod["metadata"].get("annotations", {})}:
        metadata["annotations"] = annotations
    return {
        "metadata": metadata,
        "spec": {
            **pod["spec"],
            **{key: user[key] for key in _AS_GIVEN if user.get(key)},
            **_spread(user["topologySpreadConstraints"], pod["metadata"]["labels"]),
            "containers": [merged_engine, *others],
            "volumes": pod["spec"]["volumes"] + user["volumes"],
        },
    }


def _spread(constraints: list[Manifest], labels: dict[str, str]) -> Manifest:
    """The constraints, each of them over the pods of this service."""
    selector = {"matchLabels": pod_labels(labels[SERVICE_LABEL])}
    given = [{key: value for key, value in one.items() if value != []} for one in constraints]
    return {"topologySpreadConstraints": [{**one, "labelSelector": selector} for one in given]} if given else {}


def _merge_resources(ours: Manifest, users: Manifest, claims: list[Manifest]) -> Manifest:
    """The user's requests and limits over the defaults. A default request above the user's limit, or a default limit
    below the user's request, is dropped: the API server would reject such a pod. Claims take the place of the
    accelerators, the only resources of ours whose names have a domain."""
    requests, limits = (
        {name: quantity for name, quantity in ours.get(kind, {}).items() if not claims or "/" not in name}
        for kind in ("requests", "limits")
    )
    for name, limit in users["limits"].items():
        if name in requests and parse_quantity(requests[name]) > parse_quantity(limit):
            del requests[name]
    for name, request in users["requests"].items():
        if name in limits and parse_quantity(limits[name]) < parse_quantity(request):
            del limits[name]
    merged = {"requests": {**requests, **users["requests"]}, "limits": {**limits, **users["limits"]}}
    used: Manifest = {"claims": [{"name": one["name"]} for one in claims]} if claims else {}
    return {kind: quantities for kind, quantities in merged.items() if quantities} | used


def _by_name(ours: list[Manifest], users: list[Manifest]) -> list[Manifest]:
    """Environment variables in order, the user's replace defaults of the same name; the last of a name wins."""
    return list({variable["name"]: variable for variable in [*ours, *users]}.values())

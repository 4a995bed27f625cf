"""Merges `spec.template` over the pod the operator makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inflight_operator.render.plan import Manifest

if TYPE_CHECKING:
    from inflight_operator.api.template import PodTemplate


def merge_template(pod: Manifest, template: PodTemplate) -> Manifest:
    """A new pod template with the user's parts in it; the engine is its first container.

    Labels, environment variables and resources replace the operator's of the same name; volumes and mounts are added
    (names that could clash are refused by the API server).
    """
    user: dict[str, Any] = template.model_dump(mode="json", by_alias=True, exclude_none=True)
    engine, *others = pod["spec"]["containers"]
    resources = user["resources"]
    merged_engine = {
        **engine,
        "env": _by_name(engine["env"], user["env"]),
        "resources": {
            kind: {**engine["resources"].get(kind, {}), **resources[kind]}
            for kind in ("requests", "limits")
            if engine["resources"].get(kind) or resources[kind]
        },
        "volumeMounts": engine["volumeMounts"] + user["volumeMounts"],
        **({"envFrom": user["envFrom"]} if user["envFrom"] else {}),
    }
    metadata = {**pod["metadata"], "labels": {**user["labels"], **pod["metadata"]["labels"]}}
    if user["annotations"]:
        metadata["annotations"] = user["annotations"]
    direct = ("nodeSelector", "tolerations", "affinity", "serviceAccountName", "imagePullSecrets", "priorityClassName")
    return {
        "metadata": metadata,
        "spec": {
            **pod["spec"],
            **{key: user[key] for key in direct if user.get(key)},
            "containers": [merged_engine, *others],
            "volumes": pod["spec"]["volumes"] + user["volumes"],
        },
    }


def _by_name(ours: list[Manifest], users: list[Manifest]) -> list[Manifest]:
    """Environment variables in order, the user's in place of ours of the same name; the last of a name counts."""
    return list({variable["name"]: variable for variable in [*ours, *users]}.values())

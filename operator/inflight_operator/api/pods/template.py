"""spec.template: the parts of a pod a user may set. A closed set, merged last onto the engine's pod."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from inflight_base.manifest.units import parse_quantity
from inflight_operator.api.base import SpecModel, validation
from inflight_operator.api.pods.spread import TopologySpreadConstraint

Name = Annotated[str, Field(min_length=1, max_length=253)]
ShortText = Annotated[str, Field(max_length=1024)]

INT_OR_STRING: dict[str, Any] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
_QUANTITY: dict[str, Any] = {
    **INT_OR_STRING,
    "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]+))?$",
}


def readable_quantity(quantity: str | int) -> str | int:
    """Returns the quantity unchanged.

    Raises:
        ValueError: the text is no quantity.
    """
    parse_quantity(quantity)
    return quantity


Quantity = Annotated[str | int, AfterValidator(readable_quantity), Field(json_schema_extra=_QUANTITY)]

KV_FOLDER = "/var/lib/inflight/kv"
"""Folder of the disk behind the KV cache."""

MODEL_CACHE_FOLDER = "/var/lib/inflight/models"
"""Folder of the models that engines share."""

OWN_ENV = ("INFLIGHT_ADMIN_TOKEN", "INFLIGHT_ADMIN_TOKEN_FILE", "INFLIGHT_POD_UID")
OWN_PREFIX = "inflight-"
OWN_MOUNTS = ("/tmp", "/dev/shm", "/models", "/etc/inflight", "/opt/inflight/vllm", KV_FOLDER, MODEL_CACHE_FOLDER)


class Toleration(SpecModel):
    """Taint that the pods tolerate, as in `core/v1` Toleration."""

    key: str | None = Field(
        default=None, max_length=317, description="Taint key; empty with operator Exists matches all."
    )
    operator: Literal["Exists", "Equal", "Lt", "Gt"] | None = Field(
        default=None, description="Comparison of key and value."
    )
    value: str | None = Field(default=None, max_length=63, description="Taint value that the toleration matches.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Taint effect that the toleration matches; unset matches all."
    )
    toleration_seconds: int | None = Field(
        default=None, description="Seconds for which a NoExecute taint is tolerated."
    )


class Resources(SpecModel):
    """Requests and limits of the engine container; each key given here replaces the operator's."""

    requests: dict[str, Quantity] = Field(
        default_factory=dict, description="Resources that the scheduler reserves.", max_length=32
    )
    limits: dict[str, Quantity] = Field(
        default_factory=dict, description="Maximum resources that the container may use.", max_length=32
    )


class KeySelector(SpecModel):
    """Key of a Secret or ConfigMap in the same namespace."""

    name: Name = Field(description="Name of the Secret or ConfigMap.")
    key: Name = Field(description="Key in the Secret or ConfigMap.")
    optional: bool | None = Field(default=None, description="Start the pod even when the key does not exist.")


class FieldSelector(SpecModel):
    """A field of the pod."""

    field_path: Name = Field(description="Path such as metadata.name or status.podIP.")
    api_version: str = Field(default="v1", max_length=32, description="API version of the pod that the path is for.")


class EnvSource(SpecModel):
    """Source of the value of an environment variable; exactly one field is set."""

    model_config = ConfigDict(
        json_schema_extra=validation(
            "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef)].filter(x, x).size() == 1",
            "valueFrom needs exactly one of secretKeyRef, configMapKeyRef and fieldRef",
        )
    )

    secret_key_ref: KeySelector | None = Field(default=None, description="A key of a Secret.")
    config_map_key_ref: KeySelector | None = Field(default=None, description="A key of a ConfigMap.")
    field_ref: FieldSelector | None = Field(default=None, description="A field of the pod.")


class EnvVar(SpecModel):
    """An environment variable of the engine container."""

    model_config = ConfigDict(
        json_schema_extra=validation(
            "!has(self.value) || !has(self.valueFrom)",
            "an environment variable has a value or a valueFrom, not both",
        )
    )

    name: Name = Field(description="Name of the variable.")
    value: str | None = Field(default=None, max_length=8192, description="Value of the variable.")
    value_from: EnvSource | None = Field(default=None, description="Source of the value, in place of value.")


class EnvReference(SpecModel):
    """A Secret or ConfigMap in the same namespace."""

    name: Name = Field(description="Name of the Secret or ConfigMap.")
    optional: bool | None = Field(default=None, description="Start the pod even when it does not exist.")


class EnvFrom(SpecModel):
    """Secret or ConfigMap whose keys become environment variables; exactly one of the two is set."""

    model_config = ConfigDict(
        json_schema_extra=validation(
            "has(self.secretRef) != has(self.configMapRef)",
            "envFrom needs exactly one of secretRef and configMapRef",
        )
    )

    prefix: str | None = Field(default=None, max_length=128, description="Prefix of each variable's name.")
    secret_ref: EnvReference | None = Field(default=None, description="The Secret.")
    config_map_ref: EnvReference | None = Field(default=None, description="The ConfigMap.")


class Volume(SpecModel):
    """A volume of the pod, as in `core/v1` Volume: a name and one volume source."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="allow",
        frozen=True,
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )

    name: Annotated[str, Field(min_length=1, max_length=63)] = Field(description="Name that volumeMounts refer to.")


class VolumeMount(SpecModel):
    """A volume mounted into the engine container."""

    name: Annotated[str, Field(min_length=1, max_length=63)] = Field(description="Name of the volume.")
    mount_path: ShortText = Field(description="Path in the container.")
    sub_path: ShortText | None = Field(default=None, description="Path in the volume.")
    read_only: bool | None = Field(default=None, description="Mount the volume read-only.")


class ImagePullSecret(SpecModel):
    """A Secret with registry credentials."""

    name: Name = Field(description="Name of the Secret.")


class ResourceClaim(SpecModel):
    """Devices that the pod uses, as in `core/v1` PodResourceClaim: of one claim, or of a claim made for each pod."""

    model_config = ConfigDict(
        json_schema_extra=validation(
            "has(self.resourceClaimName) != has(self.resourceClaimTemplateName)",
            "template.resourceClaims needs exactly one of resourceClaimName and resourceClaimTemplateName",
        )
    )

    name: Annotated[str, Field(min_length=1, max_length=63)] = Field(description="Name of the claim in the pod.")
    resource_claim_name: Name | None = Field(
        default=None, description="ResourceClaim of the namespace, which all pods share."
    )
    resource_claim_template_name: Name | None = Field(
        default=None, description="ResourceClaimTemplate of the namespace, of which each pod gets a claim."
    )


class PodTemplate(SpecModel):
    """Parts of the engine's pods, merged last over the operator's own. The engine container is the only container."""

    labels: dict[str, Annotated[str, Field(max_length=63)]] = Field(
        default_factory=dict,
        max_length=64,
        description="Labels added to the pods.",
        json_schema_extra=validation(
            "self.all(k, !k.startsWith('inflight.dev/') && !(k in ['app.kubernetes.io/name',"
            " 'app.kubernetes.io/instance', 'app.kubernetes.io/managed-by']))",
            "template.labels cannot set inflight.dev/... or app.kubernetes.io/name, instance and managed-by:"
            " the Service finds its pods by them",
        ),
    )
    annotations: dict[str, Annotated[str, Field(max_length=16384)]] = Field(
        default_factory=dict, max_length=64, description="Annotations added to the pods."
    )
    node_selector: dict[str, Annotated[str, Field(max_length=63)]] = Field(
        default_factory=dict, max_length=64, description="Labels that a node must have."
    )
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=32, description="Taints that the pods tolerate."
    )
    affinity: dict[str, Any] | None = Field(
        default=None,
        description="Node and pod affinity, as in core/v1 Affinity.",
        json_schema_extra={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    )
    resources: Resources = Field(
        default_factory=Resources,
        description="Requests and limits of the engine container. With accelerator.count 0 the operator requests"
        " cpu 250m and memory 1Gi with a memory limit of 4Gi, else the accelerators and, for each of them, cpu 1 and"
        " memory 4Gi, without a limit. engine.kvCache.swap is added to the memory. With engine.type vllm, the KV cache"
        " is added on CPU, and there is no limit; with custom, cpu 250m, memory 1Gi and the accelerators are"
        " requested.",
    )
    resource_claims: list[ResourceClaim] = Field(
        default_factory=list,
        max_length=16,
        description="Claims of devices (dynamic resource allocation, resource.k8s.io), which the engine container uses."
        " The accelerators are then those of the claims: the pods request no accelerator.resource, and"
        " accelerator.count must be the number that the claims have.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=64,
        description="Environment variables of the engine container, such as HF_TOKEN from a Secret.",
        json_schema_extra=validation(
            f"self.all(e, !(e.name in {list(OWN_ENV)}))",
            f"template.env cannot set {', '.join(OWN_ENV)}: the operator sets them",
        ),
    )
    env_from: list[EnvFrom] = Field(
        default_factory=list, max_length=32, description="Secrets and ConfigMaps whose keys become variables."
    )
    volumes: list[Volume] = Field(
        default_factory=list,
        max_length=32,
        description="Volumes added to the pods.",
        json_schema_extra=validation(
            f"self.all(v, !v.name.startsWith('{OWN_PREFIX}'))",
            f"template.volumes cannot have a name that begins with {OWN_PREFIX}: those are the operator's",
        ),
    )
    volume_mounts: list[VolumeMount] = Field(
        default_factory=list,
        max_length=32,
        description="Volumes mounted into the engine container.",
        json_schema_extra=validation(
            f"self.all(m, !(m.mountPath in {list(OWN_MOUNTS)}) && !m.mountPath.startsWith('/etc/inflight/'))",
            "template.volumeMounts cannot use " + ", ".join(OWN_MOUNTS) + ": the operator mounts them",
        ),
    )
    service_account_name: Name | None = Field(
        default=None, description="ServiceAccount of the pods; its token is not mounted. Default: default."
    )
    image_pull_secrets: list[ImagePullSecret] = Field(
        default_factory=list, max_length=16, description="Secrets to pull the engine image with."
    )
    priority_class_name: Name | None = Field(default=None, description="PriorityClass of the pods.")
    topology_spread_constraints: list[TopologySpreadConstraint] = Field(
        default_factory=list,
        max_length=8,
        description="Spreading of the pods over zones, nodes or other parts of the cluster.",
        json_schema_extra=validation(
            "self.all(a, self.exists_one(b, a.topologyKey == b.topologyKey"
            " && a.whenUnsatisfiable == b.whenUnsatisfiable))",
            "template.topologySpreadConstraints has two entries of one topologyKey and whenUnsatisfiable: remove"
            " one of them",
        ),
    )
    runtime_class_name: Name | None = Field(
        default=None,
        description="RuntimeClass of the pods, such as nvidia; it must exist in the cluster.",
        json_schema_extra=validation(
            "self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",
            "template.runtimeClassName must be the name of a RuntimeClass, such as nvidia",
        ),
    )
    scheduler_name: Name | None = Field(
        default=None, description="Scheduler that places the pods. Default: the cluster's default-scheduler."
    )

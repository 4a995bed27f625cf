"""Names, labels and ports of the resource, of a service's children, and of the programs that the chart installs.

Selectors never change: a Deployment's selector is immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple
from zlib import crc32

from inflight_base.manifest.keys import ServiceKey

GROUP = "inflight.dev"
VERSION = "v1alpha1"
API_VERSION: Literal["inflight.dev/v1alpha1"] = "inflight.dev/v1alpha1"
KIND: Literal["InferenceService"] = "InferenceService"
PLURAL = "inferenceservices"

LONGEST_NAME = 50
"""Most characters of the name of an InferenceService: the rest of the 63 is for what children and pods append."""

DEFAULT_CLASS = "inflight"
"""Class of services that name none, and of an installation that is given none."""

CLASS_PATTERN = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
CLASS_EXPECTED = "a class: give 1 to 63 characters of a-z, 0-9 and -, the first and last of them no -"

FIELD_MANAGER = "inflight-operator"
"""The operator's field manager, for server-side apply."""

SERVICE_LABEL = "inflight.dev/service"
"""Label of a service's children, pods included, with the service's name. The EndpointSlice controller copies it."""

PREFILL_OF_LABEL = "inflight.dev/prefill-of"
"""Label of the headless Service over engines that compute prompts for another service (`spec.disaggregation`), with the
name of that. The EndpointSlice controller copies it."""

GATEWAY_ANNOTATION = "inflight.dev/gateway"
"""Annotation of the Service of a service behind the gateway: the full DNS name of the gateway's Service."""

SLICE_OF_LABEL = "kubernetes.io/service-name"
"""Label of an EndpointSlice: the Service it belongs to."""

SLICE_MANAGER_LABEL = "endpointslice.kubernetes.io/managed-by"
SLICE_MANAGER = "inflight-operator"
"""Label of an EndpointSlice that names its writer, and its value on those of the operator: a controller of Kubernetes
with that name would delete them."""

SLICE_CONTROLLER = "endpointslice-controller.k8s.io"
"""The same label's value on EndpointSlices that Kubernetes makes for a Service with a selector."""

ENGINE_ANNOTATION = "inflight.dev/engine"
"""Annotation of pods whose engine is not of type inflight: `annotation_of` in `inflight_base.manifest.engines`."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label of pods that Kueue admits: the LocalQueue of their namespace."""

PEERS_ANNOTATION = "inflight.dev/peers"
"""Annotation of pods that load their model. It changes with the names of their peers: the kubelet brings the files of a
pod up to date when the pod changes."""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

ENGINE_CONTAINER = "engine"
"""Name of the engine's container in its pod. A pod without a container of this name has its engine in the first one."""

PLUGIN_CONTAINER, MODEL_CONTAINER = "inflight-plugin", "inflight-model"
"""Names of the init containers of vLLM's pods: one brings the plugin, one writes a built-in model."""

MODEL_VOLUME = "inflight-model"
"""Name of the volume with the model of a pod."""

MODEL_CACHE_VOLUME = "inflight-model-cache"
"""Name of the volume with the models that engines share."""

HTTP_PORT_NAME = "http"
"""Name of the port of the OpenAI API, in pods and Services."""

ADMIN_PORT_NAME = "admin"
"""Name of the port for admin calls and metrics, in pods only. Engines of earlier releases have none."""

GRPC_PORT_NAME = "grpc"
"""Name of the port of vLLM's gRPC API, in pods and Services of engines that have it."""

KV_EVENTS_PORT_NAME, KV_REPLAY_PORT_NAME = "kv-events", "kv-replay"
"""Names of the ports of KV cache events, and of past ones, in pods of engines that publish them."""

METRICS_PORT_NAME = "metrics"
"""Name of the port of the metrics page, in pods whose engine of type custom has a port of its own for it."""

ENGINE_PORT = 8000
"""Port of the OpenAI API; also the default for a container that declares none, such as a third-party engine."""

ADMIN_PORT = 8001

GRPC_PORT = 50051

KV_EVENTS_PORT, KV_REPLAY_PORT = 5557, 5558
"""Ports of KV cache events, and of past ones, by vLLM's convention."""

GATEWAY_HTTP_PORT = 8080
"""Port of the OpenAI API of all services in a gateway pod, where its Service does not say."""

GATEWAY_STATE_PORT = 9003
"""Port of a gateway pod's metrics and signed state on the pod network."""

GATEWAY_LOCAL_PORT = 9004
"""Port of a gateway pod's state and picks on its loopback interface, where `kubectl port-forward` leads."""

PREFETCH_LABELS = {"app.kubernetes.io/name": "inflight-prefetch"}
"""Label of pods that fetch a model before engines need it: no selector of a service's pods matches them."""

PREFETCH_PLACE = "inflight.dev/prefetch-place"
PREFETCH_RUN = "inflight.dev/prefetch-run"
PREFETCH_TEMPLATE = "inflight.dev/prefetch-template"
"""Annotations of a Job that fetches a model: the node or claim, what it fetches, and the identity of its pod."""

POOL_PORTS = range(20_000, 20_256)
"""Ports of the gateway's pods for InferencePools, below the ports that kernels give to outgoing connections."""

OPERATOR_LABELS = {"app.kubernetes.io/name": "inflight-operator"}
"""Labels that the chart gives the operator's pods, whatever the release is called."""

GATEWAY_LABELS = {"app.kubernetes.io/name": "inflight-gateway"}
"""Labels that the chart gives the gateway's pods, whatever the release is called."""


class ChildNames(NamedTuple):
    """Names of a service's children; Deployment, Service, PodDisruptionBudget and others carry the service's own.

    Attributes:
        front: prefix of the EndpointSlices by which the Service lists the gateway's pods.
        prefetch: NetworkPolicy of the pods that fetch the model before engines need it.
        prefill: InferenceService with the engines that compute its prompts.
    """

    main: str
    limits: str
    admin_token: str
    engines: str
    picker: str
    front: str
    prefetch: str
    prefill: str


def class_of(service: Mapping[str, Any]) -> str:
    """Returns the class of an InferenceService as the API returns it: only the installation of this class acts on
    it."""
    return str((service.get("spec") or {}).get("className") or DEFAULT_CLASS)


def child_names(name: str) -> ChildNames:
    """The names of the children of the service called `name`."""
    return ChildNames(
        main=name,
        limits=f"{name}-limits",
        admin_token=f"{name}-admin-token",
        engines=f"{name}-engines",
        picker=f"{name}-picker",
        front=f"{name}-gateway",
        prefetch=f"{name}-prefetch",
        prefill=f"{name}-prefill",
    )


def pod_labels(name: str) -> dict[str, str]:
    """The two labels that select the pods of the service called `name`."""
    return {"app.kubernetes.io/name": "inflight-engine", SERVICE_LABEL: name}


def child_labels(name: str) -> dict[str, str]:
    """Labels of every child, pods included."""
    return {
        **pod_labels(name),
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": "inflight",
    }


def selector_string(labels: Mapping[str, str]) -> str:
    """A label selector, for lists and the scale subresource."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def pool_port(service: ServiceKey) -> int:
    """Port of the gateway's pods on which other gateways ask for endpoints of the service's InferencePool.

    The endpoint picker protocol does not name the pool of a request: it takes a picker for each pool. One picker serves
    all pools, and the port distinguishes them, which works with every gateway. The port is the same in all gateway pods
    without agreement between them. Services can share one: then Host, model and allowed endpoints decide between them.
    """
    return POOL_PORTS[crc32(str(service).encode()) % len(POOL_PORTS)]

"""Inputs of rendering besides the service: decisions of the round, and settings of the installation."""

from __future__ import annotations

from dataclasses import dataclass, field

from inflight_base.manifest import Manifest
from inflight_base.manifest.slices import GatewayAddress
from inflight_settings.limits import LimitsInForce

VLLM_IMAGE = "vllm/vllm-openai:v0.32.0"
"""vLLM's official image, of a version that the plugin knows."""


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """Decisions for the children of one service.

    Attributes:
        replicas: replicas of the Deployment.
        limits: limits in force, with which new pods start.
        admin_token: token for the engines' admin calls.
        spec_digest: identity of the spec that the pods are asked for (`template_inputs`); settings of the installation
            may leave a part of it out.
        tenant_keys: current and previous key by which engines verify that the gateway signed a request; empty for a
            service that is not behind the gateway.
        gateway_pods: endpoints of the picker of the service's InferencePool; empty for one without.
        front_pods: the gateway's pods as endpoints of the Service of the service's name; empty: none, or unknown.
        leaving: the gateway sends requests to the engines, although the service is no longer behind it.
        release: rollouts remove old pods first, although the strategy is SurgeFirst.
        digests: version of the model that pods of a rollout have to find, by rollout.
        prefetch_run: name of what the Jobs fetch; empty without any.
        prefetch: places that a Job fetches the model to.
        peers: engines that may have weights: uid of the pod, and address of the admin port.
        prefill_of: name of the service that the engines compute prompts for; empty for all but those of a service's
            prefill set.
    """

    replicas: int
    limits: LimitsInForce
    admin_token: str
    spec_digest: str
    tenant_keys: tuple[str, ...] = ()
    gateway_pods: tuple[GatewayAddress, ...] = ()
    front_pods: tuple[GatewayAddress, ...] = ()
    leaving: bool = False
    release: bool = False
    digests: tuple[tuple[str, str], ...] = ()
    prefetch_run: str = ""
    prefetch: tuple[str, ...] = ()
    peers: tuple[tuple[str, str], ...] = ()
    prefill_of: str = ""


@dataclass(frozen=True, slots=True)
class EngineObservability:
    """Traces and logs of engines.

    Attributes:
        traces_endpoint: URL of an OpenTelemetry collector; empty: no traces.
        sampling_ratio: share of requests that are traced, 0 to 1.
        log_format: `text` or `json`.
        access_log: a log line for each request.
    """

    traces_endpoint: str = ""
    sampling_ratio: float = 1.0
    log_format: str = "text"
    access_log: bool = False


@dataclass(frozen=True, slots=True)
class ModelCache:
    """A folder of models that the engines of a namespace share.

    Attributes:
        claim: PersistentVolumeClaim in the namespace of each service; empty: `host_path` is the folder.
        host_path: folder on each node, in which each namespace has its own.
        size: most bytes of one namespace's folder.
        namespaces: namespaces whose services use it; empty: all.
    """

    claim: str
    host_path: str
    size: int
    namespaces: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the installation.

    Attributes:
        engine_image: default image of Inflight's engine; built-in models are in it.
        vllm_image: default image of engines of type vllm.
        plugin_image: image with the command `inflight-operator`, which brings the plugin into pods of type vllm; empty:
            such pods cannot be made.
        engine_pull_policy: when the kubelet pulls the engines' images; empty takes the default of Kubernetes.
        available_apis: optional APIs the cluster has, as `GROUP/VERSION/KIND`.
        operator_namespace: namespace of the operator's pods, which may reach the engines' admin port; None when the
            operator does not run in a pod.
        admin_peers: NetworkPolicyPeers that may reach the admin port as well.
        client_peers: NetworkPolicyPeers that may reach the serving port of services that name no clients; empty: the
            pods of their namespace.
        observability: traces and logs of engines whose service does not set them.
        gateway_service: full DNS name of the gateway's Service; empty without a gateway.
        endpoint_picker: whether the gateway's pods serve other gateways as their endpoint picker.
        model_cache: folder of models that engines share; None: each pod reads its model from the source.
    """

    engine_image: str
    engine_pull_policy: str = ""
    available_apis: frozenset[str] = frozenset()
    operator_namespace: str | None = None
    admin_peers: tuple[Manifest, ...] = ()
    client_peers: tuple[Manifest, ...] = ()
    observability: EngineObservability = field(default_factory=EngineObservability)
    gateway_service: str = ""
    endpoint_picker: bool = False
    vllm_image: str = VLLM_IMAGE
    plugin_image: str = ""
    model_cache: ModelCache | None = None

    @property
    def gateway_namespace(self) -> str:
        """Namespace of the gateway's Service and pods: the second label of its DNS name."""
        return self.gateway_service.split(".")[1] if self.gateway_service else ""

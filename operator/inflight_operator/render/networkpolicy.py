"""The NetworkPolicy of the service's pods.

Ingress: the serving port, and that of gRPC, from the clients that `spec.networkPolicy.from` or else the installation
names, or else from the pods of the service's namespace; from the gateway; and from the peers beside the operator that
may reach the admin port. Policies add up, so one that let all in would do so in a namespace that denies by default. If
the service requires API keys, only from the gateway, which checks them, and from those peers; so without a gateway, no
client reaches such a service. Engines whose metrics are on the serving port let the operator in too. The admin port
only from the operator's pods, from the peers the operator was installed with, such as Prometheus, and with
`spec.model.peers` or `spec.engine.kvCache.swap`, from the service's own pods, whose engines read weights, or keys and
values, from each other: calls that change an engine are signed or carry the token, and users have no way to try one.
Engines that compute prompts for a service (`spec.disaggregation`) and those of the service are one in this; the former
take requests from the gateway alone. An operator outside the cluster has no pods to select, so the admin port of its
engines is open, and the serving port of those whose metrics are on it. The ports of KV cache events only from the
gateway. Kubernetes always lets the node reach its own pods, and the kubelet's probes use the serving port.

Egress: only DNS and the trace collector, if any, for models in the image or on a claim, and the admin port of the pods
whose keys and values the engines read. The pod fetches all other models itself, through any mirror or proxy in its
environment, so egress stays open for these.
"""

from __future__ import annotations

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import (
    ADMIN_PORT,
    ADMIN_PORT_NAME,
    GRPC_PORT_NAME,
    HTTP_PORT_NAME,
    KV_EVENTS_PORT_NAME,
    KV_REPLAY_PORT_NAME,
    METRICS_PORT_NAME,
    OPERATOR_LABELS,
    child_names,
    pod_labels,
)
from inflight_operator.api.engine.fields import REMOTE
from inflight_operator.api.pods.network import peers
from inflight_operator.api.resolve import asks_peers, engine_type, hands_over
from inflight_operator.api.types import InferenceService
from inflight_operator.render.metadata import child
from inflight_operator.render.observability import collector_egress, observability_of
from inflight_operator.render.plan import Settings
from inflight_operator.render.prefill import has_prefill
from inflight_operator.render.service import behind_gateway, gateway_peer

_OWN_NAMESPACE: Manifest = {"podSelector": {}}
"""Peer: the pods of the policy's namespace."""


def fetches_model(service: InferenceService) -> bool:
    """Returns True if the service's pods fetch their model over the network."""
    return service.spec.model.source.startswith(("hf://", *REMOTE))


def network_policy(service: InferenceService, settings: Settings, *, leaving: bool, prefill_of: str = "") -> Manifest:
    """The policy; see the module for its rules and reasons. Ports go by name: pods of an earlier release may lack one.

    Args:
        leaving: the gateway sends requests to the engines, although the service is no longer behind it.
        prefill_of: service that the engines compute prompts for; empty: their own.
    """
    gateway = [gateway_peer(settings)] if behind_gateway(service, settings) or leaving else []
    name = service.metadata.name
    admin: Manifest = {"ports": [{"port": ADMIN_PORT_NAME, "protocol": "TCP"}]}
    if settings.operator_namespace is not None:
        operator = {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.operator_namespace}},
            "podSelector": {"matchLabels": OPERATOR_LABELS},
        }
        admin["from"] = [operator, *settings.admin_peers]
    partner = prefill_of or (child_names(name).prefill if has_prefill(service, settings) else "")
    read = [{"podSelector": {"matchLabels": pod_labels(one)}} for one in (name, partner) if one]
    reads = asks_peers(service.spec) or hands_over(service.spec)
    own = read if reads and "from" in admin else []
    egress = collector_egress(observability_of(service, settings))
    if reads:
        egress = [*egress, {"ports": [{"port": ADMIN_PORT, "protocol": "TCP"}], "to": read}]
    clients = [] if prefill_of else _clients(service, settings)
    return {
        **child("networking.k8s.io/v1", "NetworkPolicy", service),
        "spec": {
            "podSelector": {"matchLabels": pod_labels(name)},
            "policyTypes": ["Ingress"] if fetches_model(service) else ["Ingress", "Egress"],
            **({"egress": egress} if egress and not fetches_model(service) else {}),
            "ingress": [
                *_serving(service, settings, admin.get("from"), [*clients, *gateway]),
                {**admin, "from": [*admin["from"], *own]} if own else admin,
                *_metrics(service, admin.get("from"), gateway),
                *_kv_events(service, gateway),
            ],
        },
    }


def _metrics(service: InferenceService, admin_peers: list[Manifest] | None, gateway: list[Manifest]) -> list[Manifest]:
    """The rule for a port of metrics alone, which the gateway reads too; none if the engine has none."""
    if engine_type(service.spec).metrics_port is None:
        return []
    rule: Manifest = {"ports": [{"port": METRICS_PORT_NAME, "protocol": "TCP"}]}
    if admin_peers is None:
        return [rule]
    return [{**rule, "from": [*admin_peers, *gateway]}]


def _kv_events(service: InferenceService, gateway: list[Manifest]) -> list[Manifest]:
    """The rule for the ports of KV cache events, which hold the tokens of all requests: for the gateway alone."""
    if not (service.spec.engine.kv_events and gateway):
        return []
    names = (KV_EVENTS_PORT_NAME, KV_REPLAY_PORT_NAME)
    return [{"ports": [{"port": name, "protocol": "TCP"} for name in names], "from": gateway}]


def _serving(
    service: InferenceService, settings: Settings, admin_peers: list[Manifest] | None, clients: list[Manifest]
) -> list[Manifest]:
    """The rule for the serving port, and that of gRPC; none where no peer may reach them, since a rule without peers
    allows all. Args: clients: the gateway is one of them."""
    names = [HTTP_PORT_NAME, *([GRPC_PORT_NAME] if service.spec.engine.grpc else [])]
    rule: Manifest = {"ports": [{"port": name, "protocol": "TCP"} for name in names]}
    if _open_to_all(service, settings):
        return [rule]
    admin = admin_peers if admin_peers and _metrics_are_served(service) else settings.admin_peers
    allowed = [*clients, *admin]
    return [{**rule, "from": allowed}] if allowed else []


def clients_ignored(service: InferenceService, settings: Settings) -> bool:
    """Returns True if all clients may connect although a list names some."""
    return _open_to_all(service, settings) and _named(service, settings) is not None


def _open_to_all(service: InferenceService, settings: Settings) -> bool:
    """Returns True if engines have their metrics on the serving port alone, and the operator, which reads them, runs
    outside the cluster and has no pods to select."""
    return _metrics_are_served(service) and settings.operator_namespace is None and not _keyed(service)


def _clients(service: InferenceService, settings: Settings) -> list[Manifest]:
    """Returns the clients that may connect, without those of each service."""
    if (named := _named(service, settings)) is not None:
        return named
    return [] if _keyed(service) else [_OWN_NAMESPACE]


def _named(service: InferenceService, settings: Settings) -> list[Manifest] | None:
    """Returns the clients that a list names; None without one."""
    policy = service.spec.network_policy
    named = None if policy is None else peers(policy)
    if named is None and not _keyed(service):
        return list(settings.client_peers) or None
    return named


def _keyed(service: InferenceService) -> bool:
    return service.spec.gateway.enabled and service.spec.gateway.auth is not None


def _metrics_are_served(service: InferenceService) -> bool:
    """Returns True for engines whose metrics are on the serving port alone."""
    facts = engine_type(service.spec)
    return not facts.live_limits and facts.metrics_port is None

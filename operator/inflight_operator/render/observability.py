"""Traces and logs of engines: flags, environment, and egress to the trace collector.

Unset fields of a service default to the operator's settings. A change of these changes pod templates but no spec, so
running services are updated in turn, as in an engine upgrade.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from inflight_base.manifest import Manifest
from inflight_base.manifest.engines import CUSTOM
from inflight_base.manifest.names import ENGINE_CONTAINER
from inflight_operator.api.types import InferenceService
from inflight_operator.render.engine_flags import number
from inflight_operator.render.plan import EngineObservability, Settings

_DEFAULTS = EngineObservability()
_DNS_PORTS = tuple({"port": port, "protocol": protocol} for port in (53, 5353) for protocol in ("UDP", "TCP"))
"""Policies see the ports of the pods behind the Service of DNS: 5353 on OpenShift, 53 elsewhere."""

_PORTS = {"http": 80, "https": 443}
_PATH = re.compile("[a-z]+://[^/]+/.+")
"""A URL with a path."""


def observability_of(service: InferenceService, settings: Settings) -> EngineObservability:
    """The effective settings of a service: its own fields, else those of the installation. vLLM takes those of traces,
    and a custom engine none."""
    if service.spec.engine.type == CUSTOM:
        return EngineObservability()
    tracing, logs, default = service.spec.engine.tracing, service.spec.engine.logs, settings.observability
    ratio = default.sampling_ratio if tracing.sampling_ratio is None else tracing.sampling_ratio
    return EngineObservability(
        traces_endpoint=tracing.endpoint or default.traces_endpoint,
        sampling_ratio=ratio,
        log_format=logs.format or default.log_format,
        access_log=default.access_log if logs.access_log is None else logs.access_log,
    )


def observability_flags(observability: EngineObservability) -> list[str]:
    """Arguments of `inflight-engine serve`: only values that differ from the engine's defaults."""
    flags = []
    if observability.traces_endpoint:
        flags.append(f"--otlp-traces-endpoint={observability.traces_endpoint}")
        if observability.sampling_ratio != _DEFAULTS.sampling_ratio:
            flags.append(f"--traces-sampling-ratio={number(observability.sampling_ratio)}")
    if observability.log_format != _DEFAULTS.log_format:
        flags.append(f"--log-format={observability.log_format}")
    if observability.access_log:
        flags.append("--enable-access-log")
    return flags


def vllm_trace_flags(observability: EngineObservability) -> list[str]:
    """Arguments of `vllm serve`. Unlike Inflight's engine, it takes a URL without a path as it is."""
    endpoint = observability.traces_endpoint
    if not endpoint:
        return []
    url = endpoint if _PATH.match(endpoint) else f"{endpoint.rstrip('/')}/v1/traces"
    return [f"--otlp-traces-endpoint={url}"]


def vllm_trace_environment(service: InferenceService, observability: EngineObservability) -> dict[str, Manifest]:
    """Variables for vLLM: its protocol is gRPC by default, and its sampler is the SDK's, which has no flag."""
    if not observability.traces_endpoint:
        return {}
    variables = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    if observability.sampling_ratio != _DEFAULTS.sampling_ratio:
        variables["OTEL_TRACES_SAMPLER"] = "parentbased_traceidratio"
        variables["OTEL_TRACES_SAMPLER_ARG"] = number(observability.sampling_ratio)
    return {
        **trace_environment(service, observability),
        **{name: {"value": value} for name, value in variables.items()},
    }


def trace_environment(service: InferenceService, observability: EngineObservability) -> dict[str, Manifest]:
    """Variables that name the sender of traces; none without traces."""
    if not observability.traces_endpoint:
        return {}
    metadata = service.metadata
    resource = {
        "service.namespace": metadata.namespace,
        "k8s.namespace.name": metadata.namespace,
        "k8s.pod.name": "$(INFLIGHT_POD_NAME)",
        "k8s.pod.uid": "$(INFLIGHT_POD_UID)",
        "k8s.container.name": ENGINE_CONTAINER,
    }
    return {
        "INFLIGHT_POD_UID": _field("metadata.uid"),
        "INFLIGHT_POD_NAME": _field("metadata.name"),
        "OTEL_SERVICE_NAME": {"value": metadata.name},
        "OTEL_RESOURCE_ATTRIBUTES": {"value": ",".join(f"{key}={value}" for key, value in resource.items())},
    }


def _field(path: str) -> Manifest:
    return {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def collector_egress(observability: EngineObservability) -> list[Manifest]:
    """NetworkPolicyEgressRules to DNS and the collector; none without traces.

    A collector that is named as a Service, NAME.NAMESPACE.svc, is any pod of that namespace: policies see the ports of
    its pods, which may differ from the Service's. An IP address is that address with the URL's port; any other name is
    any address with that port. For an unusable URL only DNS is allowed.
    """
    if not observability.traces_endpoint:
        return []
    dns: Manifest = {"ports": [dict(port) for port in _DNS_PORTS]}
    reached = _host_and_port(observability.traces_endpoint)
    if reached is None:
        return [dns]
    host, port = reached
    ports = [{"port": port, "protocol": "TCP"}]
    labels = host.split(".")
    if len(labels) >= 3 and labels[2] == "svc":
        namespace = {"matchLabels": {"kubernetes.io/metadata.name": labels[1]}}
        to_collector: Manifest = {"to": [{"namespaceSelector": namespace}]}
    elif block := _ip_block(host):
        to_collector = {"to": [{"ipBlock": {"cidr": block}}], "ports": ports}
    else:
        to_collector = {"ports": ports}
    return [dns, to_collector]


def _host_and_port(endpoint: str) -> tuple[str, int] | None:
    """None for an unusable URL. The API server rejects those, but an older version may have stored some."""
    try:
        url = urlsplit(endpoint)
        port = _PORTS.get(url.scheme) if url.port is None else url.port
    except ValueError:
        return None
    return (url.hostname, port) if url.hostname and port else None


def _ip_block(host: str) -> str | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return f"{address}/{address.max_prefixlen}"

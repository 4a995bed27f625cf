"""Prometheus: existence of its operator's API, and selection of the monitors of engines and operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inflight_kubectl.access.api_problems import ApiProblem
from inflight_kubectl.access.cluster import Cluster, Json
from inflight_kubectl.doctor.result import Result, ok, warn

API = "/apis/monitoring.coreos.com/v1"
PART = "app.kubernetes.io/name in (inflight-engine, inflight-operator)"
_KINDS = {"podmonitors": "podMonitor", "servicemonitors": "serviceMonitor"}
_STACK = "helm install monitoring prometheus-community/kube-prometheus-stack -n monitoring --create-namespace"


def check_monitoring(cluster: Cluster) -> Iterator[Result]:
    """Checks that a Prometheus selects the monitors. Dashboards and alerts need it; scaling and tuning do not."""
    yield ok("metrics-server", "not needed: the operator reads the engines' own metrics")
    if not _served(cluster):
        yield warn("prometheus", "no Prometheus operator: there are no alerts and dashboards without one", _STACK)
        return
    servers = cluster.list(f"{API}/prometheuses")["items"]
    if not servers:
        yield warn("prometheus", "the Prometheus operator is there, and no Prometheus", _STACK)
        return
    spaces = {
        one["metadata"]["name"]: one["metadata"].get("labels") or {}
        for one in cluster.list("/api/v1/namespaces")["items"]
    }
    monitors = [(kind, one) for kind in _KINDS for one in cluster.list(f"{API}/{kind}", labelSelector=PART)["items"]]
    lost = [(kind, one) for kind, one in monitors if not any(selects(server, kind, one, spaces) for server in servers)]
    if not lost:
        count = f"all {len(monitors)} monitors of Inflight" if monitors else "there are no monitors of Inflight yet"
        yield ok("prometheus", f"{len(servers)} Prometheus: {count}{' are selected' if monitors else ''}")
        return
    kind, first = lost[0]
    server = servers[0]["metadata"]
    field = _KINDS[kind]
    found = f"no Prometheus selects {len(lost)} of {len(monitors)} monitors, such as {_name(first)}"
    change = f'{{"spec":{{"{field}Selector":{{}},"{field}NamespaceSelector":{{}}}}}}'
    remedy = f"kubectl -n {server['namespace']} patch prometheus {server['name']} --type merge -p '{change}'"
    yield warn("prometheus", found, remedy)


def selects(server: Json, kind: str, monitor: Json, spaces: Mapping[str, Mapping[str, str]]) -> bool:
    """Returns True if a Prometheus selects a monitor.

    Args:
        kind: `podmonitors` or `servicemonitors`.
        spaces: labels of all namespaces.
    """
    spec, metadata, field = server["spec"], monitor["metadata"], _KINDS[kind]
    by_namespace = spec.get(f"{field}NamespaceSelector")
    if by_namespace is None:
        right_namespace = metadata["namespace"] == server["metadata"]["namespace"]
    else:
        right_namespace = matches(by_namespace, spaces.get(metadata["namespace"], {}))
    return right_namespace and matches(spec.get(f"{field}Selector"), metadata.get("labels") or {})


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Returns True if a LabelSelector matches; an empty one matches everything, None matches nothing."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(one, labels) for one in selector.get("matchExpressions") or ()
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or []
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]


def _served(cluster: Cluster) -> bool:
    try:
        cluster.list(API)
    except ApiProblem as problem:
        if problem.status == 404:
            return False
        raise
    return True


def _name(monitor: Json) -> str:
    return f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"

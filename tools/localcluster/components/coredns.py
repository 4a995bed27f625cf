"""CoreDNS: service names, as a pod of the cluster (https://kubernetes.io/docs/tasks/administer-cluster/coredns/)."""

from __future__ import annotations

from typing import Any

from tools.localcluster.addresses import Network

IMAGE_NAME = "localhost/coredns"
_NAMESPACE = "kube-system"
_LABELS = {"k8s-app": "kube-dns"}


def corefile(upstream: bool) -> str:
    """The configuration; names outside the cluster are forwarded only where the host has an `upstream` server."""
    forward = "    forward . /etc/resolv.conf\n" if upstream else ""
    return (
        ".:53 {\n"
        "    errors\n"
        "    health\n"
        "    ready\n"
        "    kubernetes cluster.local in-addr.arpa ip6.arpa {\n"
        "        pods insecure\n"
        "        fallthrough in-addr.arpa ip6.arpa\n"
        "        ttl 5\n"
        "    }\n"
        f"{forward}"
        "    cache 5\n"
        "}\n"
    )


def manifests(network: Network, image: str, upstream: bool) -> list[dict[str, Any]]:
    """The objects of the service `kube-dns`."""

    def meta(name: str, *, namespaced: bool = True) -> dict[str, Any]:
        return {"name": name, "labels": _LABELS} | ({"namespace": _NAMESPACE} if namespaced else {})

    account = {"kind": "ServiceAccount", "name": "coredns", "namespace": _NAMESPACE}
    role = {"kind": "ClusterRole", "name": "system:coredns", "apiGroup": "rbac.authorization.k8s.io"}
    read = ["list", "watch"]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta("coredns")},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": meta("system:coredns", namespaced=False),
            "rules": [
                {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": read},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": meta("system:coredns", namespaced=False),
            "roleRef": role,
            "subjects": [account],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": meta("coredns"),
            "data": {"Corefile": corefile(upstream)},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta("kube-dns"),
            "spec": {
                "selector": _LABELS,
                "clusterIP": network.dns_service,
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
                ],
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta("coredns"),
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": _LABELS},
                "template": {"metadata": {"labels": _LABELS}, "spec": _pod(image)},
            },
        },
    ]


def _pod(image: str) -> dict[str, Any]:
    def probe(path: str, port: int) -> dict[str, Any]:
        return {"httpGet": {"path": path, "port": port}, "periodSeconds": 1, "failureThreshold": 30}

    return {
        "serviceAccountName": "coredns",
        "priorityClassName": "system-cluster-critical",
        "dnsPolicy": "Default",
        "containers": [
            {
                "name": "coredns",
                "image": image,
                "imagePullPolicy": "Never",
                "args": ["-conf", "/etc/coredns/Corefile"],
                "resources": {"requests": {"cpu": "50m", "memory": "40Mi"}, "limits": {"memory": "170Mi"}},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
                "livenessProbe": probe("/health", 8080),
                "readinessProbe": probe("/ready", 8181),
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                },
            }
        ],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }

"""CoreDNS: service names, as a pod of the cluster (https://kubernetes.io/docs/tasks/administer-cluster/coredns/)."""

from __future__ import annotations

from typing import Any

import yaml

from tools.localcluster.node.addresses import Network

IMAGE_NAME = "localhost/coredns"
_COREFILE = """
.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 5
    }
    forward . /etc/resolv.conf
    cache 5
}
"""
_MANIFESTS = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system, labels: {k8s-app: kube-dns}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:coredns", labels: {k8s-app: kube-dns}}
rules:
- {apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:coredns", labels: {k8s-app: kube-dns}}
roleRef: {kind: ClusterRole, name: "system:coredns", apiGroup: rbac.authorization.k8s.io}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system, labels: {k8s-app: kube-dns}}
data: {Corefile: ""}
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  selector: {k8s-app: kube-dns}
  ports:
  - {name: dns, port: 53, protocol: UDP}
  - {name: dns-tcp, port: 53, protocol: TCP}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  replicas: 1
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      priorityClassName: system-cluster-critical
      dnsPolicy: Default
      containers:
      - name: coredns
        imagePullPolicy: Never
        args: [-conf, /etc/coredns/Corefile]
        resources: {requests: {cpu: 50m, memory: 40Mi}, limits: {memory: 170Mi}}
        volumeMounts: [{name: config, mountPath: /etc/coredns, readOnly: true}]
        livenessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1, failureThreshold: 30}
        readinessProbe: {httpGet: {path: /ready, port: 8181}, periodSeconds: 1, failureThreshold: 30}
        securityContext:
          allowPrivilegeEscalation: false
          capabilities: {add: [NET_BIND_SERVICE], drop: [ALL]}
          readOnlyRootFilesystem: true
      volumes: [{name: config, configMap: {name: coredns}}]
"""


def corefile(upstream: bool) -> str:
    """The configuration; names outside the cluster are forwarded only where the host has an `upstream` server."""
    lines = _COREFILE.lstrip().splitlines(keepends=True)
    return "".join(line for line in lines if upstream or "forward" not in line)


def manifests(network: Network, image: str, upstream: bool) -> list[dict[str, Any]]:
    """The objects of the service `kube-dns`."""
    objects = list(yaml.safe_load_all(_MANIFESTS))
    for one in objects:
        if one["kind"] == "ConfigMap":
            one["data"]["Corefile"] = corefile(upstream)
        elif one["kind"] == "Service":
            one["spec"]["clusterIP"] = network.dns_service
        elif one["kind"] == "Deployment":
            one["spec"]["template"]["spec"]["containers"][0]["image"] = image
    return objects

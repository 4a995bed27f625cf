"""kube-proxy: service addresses, in separate nftables tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.localcluster.addresses import Network, Ports
from tools.localcluster.process import Program

NFTABLES_TABLES = (("ip", "kube-proxy"), ("ip6", "kube-proxy"))
"""Family and name of the tables it makes, and leaves when it is killed."""


def configuration(pki: Path, ports: Ports, network: Network, node_name: str) -> dict[str, Any]:
    """A KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1)."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(pki / "kube-proxy.kubeconfig")},
        "clusterCIDR": network.pods,
        "hostnameOverride": node_name,
        "healthzBindAddress": f"127.0.0.1:{ports.proxy_health}",
        "metricsBindAddress": f"127.0.0.1:{ports.proxy_metrics}",
        # NodePorts only at the node's own address, not at those by which the neighbours reach this machine.
        "nodePortAddresses": [f"{network.node_address}/32"],
        # Zero: leave the host's connection tracking as it is.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def program(binary: Path, configuration_file: Path) -> Program:
    """kube-proxy with its configuration file."""
    return Program("kube-proxy", (str(binary), f"--config={configuration_file}"))

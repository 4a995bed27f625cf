"""kubelet and kube-proxy: the programs of the node."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

from tools.localcluster.node.plane import ApiPlane
from tools.localcluster.node.settings import NODE_NAME
from tools.localcluster.process import Program


def kubelet_configuration(plane: ApiPlane, containerd: Path) -> dict[str, Any]:
    """A KubeletConfiguration (kubelet.config.k8s.io/v1beta1)."""
    network, ports, root, pki = plane.settings.network, plane.settings.ports, plane.folder, plane.pki
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.node_address,
        "port": ports.kubelet,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": ports.kubelet_health,
        "tlsCertFile": str(pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(pki / "kubelet.key"),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDomain": "cluster.local",
        "clusterDNS": [network.dns_service],
        "resolvConf": str(root / "resolv.conf"),
        "containerRuntimeEndpoint": f"unix://{containerd}",
        "podLogsDir": str(root / "pod-logs"),
        "volumePluginDir": str(root / "volume-plugins"),
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        # The host's own iptables rules stay as they are; kube-proxy has an nftables table of its own.
        "makeIPTablesUtilChains": False,
        # The images are the product of minutes of building and come from nowhere else: never collect them.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "registryPullQPS": 0,
        "serializeImagePulls": False,
        "enableProfilingHandler": False,
    }


def kubelet(binary: Path, plane: ApiPlane, configuration_file: Path) -> Program:
    """Returns the kubelet, which runs the pods of this node."""
    return Program.of(
        binary,
        f"--config={configuration_file}",
        f"--kubeconfig={plane.pki / 'kubelet.kubeconfig'}",
        f"--root-dir={plane.folder / 'kubelet'}",
        f"--cert-dir={plane.pki / 'kubelet-certificates'}",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={plane.settings.network.node_address}",
        # No question to a cloud's metadata address, which times out elsewhere.
        AWS_EC2_METADATA_DISABLED="true",
    )


def kube_proxy_configuration(plane: ApiPlane) -> dict[str, Any]:
    """A KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1): service addresses, in separate nftables tables."""
    network, ports = plane.settings.network, plane.settings.ports
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(plane.pki / "kube-proxy.kubeconfig")},
        "clusterCIDR": network.pods,
        "hostnameOverride": NODE_NAME,
        "healthzBindAddress": f"127.0.0.1:{ports.proxy_health}",
        "metricsBindAddress": f"127.0.0.1:{ports.proxy_metrics}",
        # NodePorts only at the node's own address, not at those by which the neighbours reach this machine.
        "nodePortAddresses": [f"{network.node_address}/32"],
        # Zero: leave the host's connection tracking as it is.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def resolver_configuration(host: str) -> str:
    """The host's resolv.conf without name servers on loopback: inside a pod that would be the pod itself."""

    def keep(line: str) -> bool:
        fields = line.split()
        if not fields or fields[0] != "nameserver" or len(fields) < 2:
            return bool(fields)
        return not ipaddress.ip_address(fields[1].partition("%")[0]).is_loopback

    return "".join(line + "\n" for line in host.splitlines() if keep(line))

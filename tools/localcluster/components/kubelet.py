"""kubelet: runs the pods of this node."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

from tools.localcluster.addresses import Network, Ports
from tools.localcluster.process import Program


def configuration(root: Path, pki: Path, ports: Ports, network: Network, containerd: Path) -> dict[str, Any]:
    """A KubeletConfiguration (kubelet.config.k8s.io/v1beta1); `root` is the cluster's folder."""
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


def program(binary: Path, configuration_file: Path, root: Path, pki: Path, node_name: str, network: Network) -> Program:
    """The kubelet of the node `node_name`, with its data below `root`."""
    return Program(
        "kubelet",
        (
            str(binary),
            f"--config={configuration_file}",
            f"--kubeconfig={pki / 'kubelet.kubeconfig'}",
            f"--root-dir={root / 'kubelet'}",
            f"--cert-dir={pki / 'kubelet-certificates'}",
            f"--hostname-override={node_name}",
            f"--node-ip={network.node_address}",
        ),
        # No question to a cloud's metadata address, which times out elsewhere.
        {"AWS_EC2_METADATA_DISABLED": "true"},
    )


def resolver_configuration(host: str) -> str:
    """The host's resolv.conf without name servers on loopback: inside a pod that would be the pod itself."""

    def keep(line: str) -> bool:
        fields = line.split()
        if not fields or fields[0] != "nameserver" or len(fields) < 2:
            return bool(fields)
        return not ipaddress.ip_address(fields[1].partition("%")[0]).is_loopback

    return "".join(line + "\n" for line in host.splitlines() if keep(line))

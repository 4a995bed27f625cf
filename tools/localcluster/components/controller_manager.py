"""kube-controller-manager: Deployments, endpoints, garbage collection and the other built-in controllers."""

from __future__ import annotations

from pathlib import Path

from tools.localcluster.addresses import Network, Ports
from tools.localcluster.process import Program


def program(binary: Path, pki: Path, ports: Ports, network: Network) -> Program:
    """One controller manager, alone and so without leader election."""
    kubeconfig = pki / "controller-manager.kubeconfig"
    return Program(
        "kube-controller-manager",
        (
            str(binary),
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={ports.controller_manager}",
            f"--cert-dir={pki / 'controller-manager'}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={pki / 'service-accounts.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--cluster-signing-cert-file={pki / 'ca.crt'}",
            f"--cluster-signing-key-file={pki / 'ca.key'}",
            f"--requestheader-client-ca-file={pki / 'front-proxy-ca.crt'}",
            f"--cluster-cidr={network.pods}",
            f"--service-cluster-ip-range={network.services}",
            "--allocate-node-cidrs=false",
            # The only node: were it given up when the API server was away for a while, its pods would leave their
            # Services, though they serve, until kube-proxy has heard that it is back.
            "--node-monitor-grace-period=10m",
            f"--flex-volume-plugin-dir={pki.parent / 'volume-plugins'}",
            "--profiling=false",
        ),
    )

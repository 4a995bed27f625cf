"""kube-apiserver: the Kubernetes API."""

from __future__ import annotations

from pathlib import Path

from tools.localcluster.addresses import Network, Ports
from tools.localcluster.process import Program


def program(binary: Path, pki: Path, ports: Ports, services: str, address: str, *, with_node: bool) -> Program:
    """The API server at `address`, with service addresses from `services`.

    Without a node (`with_node=False`: for tests of the API alone) it neither reaches kubelets nor publishes itself
    as the service `kubernetes`.
    """
    node_flags: tuple[str, ...] = (
        f"--kubelet-client-certificate={pki / 'apiserver-kubelet.crt'}",
        f"--kubelet-client-key={pki / 'apiserver-kubelet.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--advertise-address={address}",
    )
    if not with_node:
        # Nothing uses the advertised address then, but the API server refuses a loopback one: documentation range.
        node_flags = ("--endpoint-reconciler-type=none", "--advertise-address=192.0.2.1")
    return Program(
        "kube-apiserver",
        (
            str(binary),
            f"--bind-address={address}",
            f"--secure-port={ports.apiserver}",
            f"--etcd-servers=https://127.0.0.1:{ports.etcd}",
            f"--etcd-cafile={pki / 'etcd-ca.crt'}",
            f"--etcd-certfile={pki / 'apiserver-etcd.crt'}",
            f"--etcd-keyfile={pki / 'apiserver-etcd.key'}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--cert-dir={pki}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--anonymous-auth=false",
            "--allow-privileged=true",
            f"--service-cluster-ip-range={services}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={pki / 'service-accounts.pub'}",
            f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
            "--enable-aggregator-routing=true",
            f"--requestheader-client-ca-file={pki / 'front-proxy-ca.crt'}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={pki / 'front-proxy.crt'}",
            f"--proxy-client-key-file={pki / 'front-proxy.key'}",
            "--profiling=false",
            *node_flags,
        ),
    )


def certificate_addresses(network: Network) -> tuple[str, ...]:
    """Addresses at which the node's API server is spoken to."""
    return ("127.0.0.1", network.node_address, network.api_service)

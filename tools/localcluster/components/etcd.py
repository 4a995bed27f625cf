"""etcd: the cluster's data, one member, on loopback with TLS both ways."""

from __future__ import annotations

from pathlib import Path

from tools.localcluster.addresses import Ports
from tools.localcluster.process import Program


def program(binary: Path, data: Path, pki: Path, ports: Ports) -> Program:
    """The member that keeps its data in the folder `data`."""
    client, peer = f"https://127.0.0.1:{ports.etcd}", f"https://127.0.0.1:{ports.etcd_peer}"
    certificate, key, authority = pki / "etcd.crt", pki / "etcd.key", pki / "etcd-ca.crt"
    return Program(
        "etcd",
        (
            str(binary),
            "--name=inflight",
            f"--data-dir={data}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=inflight={peer}",
            f"--cert-file={certificate}",
            f"--key-file={key}",
            f"--trusted-ca-file={authority}",
            "--client-cert-auth=true",
            f"--peer-cert-file={certificate}",
            f"--peer-key-file={key}",
            f"--peer-trusted-ca-file={authority}",
            "--peer-client-cert-auth=true",
            # A killed process loses nothing by this, only a crashed machine; and a disk flush a write is saved.
            "--unsafe-no-fsync=true",
            "--log-level=warn",
        ),
    )

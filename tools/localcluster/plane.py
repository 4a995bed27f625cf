"""The control plane's first half: etcd and the API server, as the node and the tests of the API alone use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tools.localcluster import kubeconfig, probe
from tools.localcluster.addresses import Ports
from tools.localcluster.components import apiserver, etcd
from tools.localcluster.process import Processes, Program


@dataclass(frozen=True)
class ApiPlane:
    """Where an etcd and an API server live and at which address they answer."""

    folder: Path
    ports: Ports
    address: str
    services: str
    with_node: bool

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self.ports.apiserver}"

    def start_etcd(self, processes: Processes, binary: Path) -> None:
        """Start etcd and wait until it answers."""
        processes.ensure(etcd.program(binary, self.folder / "etcd", self.pki, self.ports))
        trusted = probe.client_context(self.pki, "apiserver-etcd", "etcd-ca")
        url = f"https://127.0.0.1:{self.ports.etcd}/health"
        processes.wait_ready("etcd", lambda: probe.answers_ok(url, trusted), 60)

    def apiserver(self, binary: Path) -> Program:
        return apiserver.program(binary, self.pki, self.ports, self.services, self.address, with_node=self.with_node)

    def start_apiserver(self, processes: Processes, binary: Path) -> Path:
        """Start the API server (etcd answers already) and wait until it is ready; the admin's kubeconfig."""
        processes.ensure(self.apiserver(binary))
        trusted = probe.client_context(self.pki, "admin")
        processes.wait_ready("kube-apiserver", lambda: probe.answers_ok(f"{self.server}/readyz", trusted), 120)
        return kubeconfig.write(self.pki, "admin", self.server)

"""The control plane: etcd, API server, controller manager and scheduler.

The own node runs all of it, the operator's benchmark all of it without a node, and tests of the API its first two.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.localcluster import layout, probe
from tools.localcluster.node import addresses, certificates
from tools.localcluster.node.settings import Settings
from tools.localcluster.process import Processes, Program
from tools.localcluster.programs import gobuild, goparts
from tools.localcluster.progress import Progress, to_stdout

APISERVER_VARIABLE = "INFLIGHT_APISERVER"
"""Environment variable with the path of the kube-apiserver that `apiserver_only` starts instead of the cluster's."""


@dataclass(frozen=True)
class ApiPlane:
    """The control plane of one folder.

    Attributes:
        with_node: the API server answers at the node's address. Without a node it answers on loopback, and neither
            reaches kubelets nor publishes itself as the service `kubernetes`.
    """

    folder: Path
    settings: Settings
    with_node: bool

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def address(self) -> str:
        return self.settings.network.node_address if self.with_node else "127.0.0.1"

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self.settings.ports.apiserver}"

    @property
    def certificate_addresses(self) -> tuple[str, ...]:
        """Addresses at which the API server is spoken to."""
        network = self.settings.network
        return ("127.0.0.1", *((network.node_address, network.api_service) if self.with_node else ()))

    def etcd(self, binary: Path) -> Program:
        """The cluster's data: one member, on loopback with TLS both ways."""
        ports, pki = self.settings.ports, self.pki
        certificate, key, authority = pki / "etcd.crt", pki / "etcd.key", pki / "etcd-ca.crt"
        client, peer = f"https://127.0.0.1:{ports.etcd}", f"https://127.0.0.1:{ports.etcd_peer}"
        return Program.of(
            binary,
            "--name=inflight",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=inflight={peer}",
            f"--cert-file={certificate}",
            f"--key-file={key}",
            f"--trusted-ca-file={authority}",
            f"--peer-cert-file={certificate}",
            f"--peer-key-file={key}",
            f"--peer-trusted-ca-file={authority}",
            "--client-cert-auth=true",
            "--peer-client-cert-auth=true",
            # A killed process loses nothing by this, only a crashed machine; and a disk flush a write is saved.
            "--unsafe-no-fsync=true",
            "--log-level=warn",
        )

    def apiserver(self, binary: Path) -> Program:
        """The Kubernetes API."""
        ports, pki = self.settings.ports, self.pki
        # Nothing uses the advertised address then, but the API server refuses a loopback one: documentation range.
        node_flags: tuple[str, ...] = ("--endpoint-reconciler-type=none", "--advertise-address=192.0.2.1")
        if self.with_node:
            node_flags = (
                f"--kubelet-client-certificate={pki / 'apiserver-kubelet.crt'}",
                f"--kubelet-client-key={pki / 'apiserver-kubelet.key'}",
                f"--kubelet-certificate-authority={pki / 'ca.crt'}",
                "--kubelet-preferred-address-types=InternalIP",
                f"--advertise-address={self.address}",
            )
        return Program.of(
            binary,
            f"--bind-address={self.address}",
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
            f"--service-cluster-ip-range={self.settings.network.services}",
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
        )

    def controller_manager(self, binary: Path) -> Program:
        """Deployments, endpoints, garbage collection and the other built-in controllers."""
        network, pki = self.settings.network, self.pki
        return self._controller(
            binary,
            "controller-manager",
            self.settings.ports.controller_manager,
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
            f"--flex-volume-plugin-dir={self.folder / 'volume-plugins'}",
        )

    def scheduler(self, binary: Path) -> Program:
        """Gives pods their node."""
        return self._controller(binary, "scheduler", self.settings.ports.scheduler)

    def _controller(self, binary: Path, user: str, port: int, *flags: str) -> Program:
        """A client of the API server, alone and so without leader election."""
        kubeconfig = self.pki / f"{user}.kubeconfig"
        return Program.of(
            binary,
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.pki / user}",
            "--leader-elect=false",
            "--profiling=false",
            *flags,
        )

    def start_etcd(self, processes: Processes, binary: Path) -> None:
        """Start etcd and wait until it answers."""
        processes.ensure(self.etcd(binary))
        trusted = probe.client_context(self.pki, "apiserver-etcd", "etcd-ca")
        url = f"https://127.0.0.1:{self.settings.ports.etcd}/health"
        processes.wait_ready("etcd", lambda: probe.answers_ok(url, trusted), 60)

    def start_apiserver(self, processes: Processes, binary: Path, *flags: str) -> Path:
        """Start the API server (etcd answers already) and wait until it is ready; the admin's kubeconfig."""
        processes.ensure(self.apiserver(binary).plus(*flags))
        trusted = probe.client_context(self.pki, "admin")
        processes.wait_ready("kube-apiserver", lambda: probe.answers_ok(f"{self.server}/readyz", trusted), 120)
        return certificates.write_kubeconfig(self.pki, "admin", self.server)


@contextmanager
def apiserver_only(state_dir: Path, progress: Progress | None = None) -> Iterator[Path]:
    """Start etcd and kube-apiserver below `state_dir` on free loopback ports; yield the admin's kubeconfig path.

    Needs no root. Builds both programs first where they are not in the cache. Both end with the block.
    Nothing runs controllers: objects are stored and validated, not acted upon.
    """
    say = progress or to_stdout()
    cache = layout.current()
    with ThreadPoolExecutor(2) as pool:
        etcd_built = pool.submit(gobuild.ensure_part, goparts.ETCD, cache, say)
        other = os.environ.get(APISERVER_VARIABLE)
        apiserver = Path(other) if other else gobuild.ensure_part(goparts.APISERVER, cache, say) / "kube-apiserver"
        etcd = etcd_built.result() / "etcd"
    folder = state_dir.absolute()
    plane = ApiPlane(folder, Settings(addresses.CANDIDATES[0], addresses.free_ports()), with_node=False)
    certificates.ensure(plane.pki, certificates.control_plane_leaves(plane.certificate_addresses))
    processes = Processes(layout.Layout(folder))
    try:
        plane.start_etcd(processes, etcd)
        yield plane.start_apiserver(processes, apiserver)
    finally:
        processes.stop("kube-apiserver", grace_seconds=2)
        processes.stop("etcd", grace_seconds=2)

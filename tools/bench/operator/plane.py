"""A dedicated control plane with fake nodes: etcd, API server, controllers, scheduler and kwok on loopback."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.localcluster import layout
from tools.localcluster.node import certificates
from tools.localcluster.node.addresses import Network, Ports
from tools.localcluster.node.certificates import Leaf
from tools.localcluster.node.plane import ApiPlane
from tools.localcluster.node.settings import Settings
from tools.localcluster.process import Processes, Program
from tools.localcluster.programs import gobuild, goparts, packages
from tools.localcluster.progress import Progress, step

PARTS = (goparts.ETCD, goparts.APISERVER, goparts.NODE, goparts.KWOK)
NETWORK = Network(pods="10.128.0.0/14", services="10.96.0.0/16")
OPERATOR_USER, SECOND_USER = "inflight-operator", "second-operator"
"""Users of the two installations' operators."""
PODS_PER_NODE = 1000

_STAGES = Path(__file__).with_name("kwok.yaml")
_KWOK_PORT = 10247
_LEAVES = (
    *certificates.control_plane_leaves(["127.0.0.1"]),
    Leaf("controller-manager", "system:kube-controller-manager"),
    Leaf("scheduler", "system:kube-scheduler"),
    Leaf("kwok", "kwok", organization="system:masters"),
    # In the group of service accounts, so that the API server's flow control treats them as operators in pods.
    *(Leaf(user, user, organization="system:serviceaccounts") for user in (OPERATOR_USER, SECOND_USER)),
)
_MANY_CALLS = ("--kube-api-qps=1000", "--kube-api-burst=2000")


@dataclass(frozen=True, slots=True)
class Plane:
    """A running control plane.

    Attributes:
        operator_kubeconfig, second_kubeconfig: of the operators' own users, whose requests alone are in the audit log.
        audit_log: file with a JSON object a line, see https://kubernetes.io/docs/tasks/debug/debug-cluster/audit/.
        processes: its processes; others can be added.
    """

    admin_kubeconfig: Path
    operator_kubeconfig: Path
    second_kubeconfig: Path
    audit_log: Path
    processes: Processes


def audit_policy() -> dict[str, Any]:
    """Audit policy: metadata of the operators' own requests only."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": [OPERATOR_USER, SECOND_USER]}, {"level": "None"}],
    }


def nodes(pods: int) -> list[dict[str, Any]]:
    """Returns fake nodes for `pods` pods and the growth of some services."""
    return [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"fake-{number}"}}
        for number in range(-(-2 * pods // PODS_PER_NODE))
    ]


@contextmanager
def plane(folder: Path, progress: Progress) -> Iterator[Plane]:
    """Start everything below `folder`; it ends with the block. The network namespace is this process's own."""
    ip = packages.require("ip")
    subprocess.run([ip, "link", "set", "lo", "up"], check=True)
    # Every address of the pods is this machine: one process answers for all engines.
    subprocess.run([ip, "route", "add", "local", NETWORK.pods, "dev", "lo"], check=True)
    etcd, apiserver, node, kwok = (gobuild.folder_of(part, layout.current()) for part in PARTS)
    api = ApiPlane(folder, Settings(NETWORK, Ports()), with_node=False)
    certificates.ensure(api.pki, _LEAVES)
    policy, audit_log = folder / "audit-policy.json", folder / "audit.log"
    policy.write_text(json.dumps(audit_policy()))
    users = ("admin", "controller-manager", "scheduler", "kwok", OPERATOR_USER, SECOND_USER)
    configs = {user: certificates.write_kubeconfig(api.pki, user, api.server) for user in users}
    processes = Processes(layout.Layout(folder))
    audited = (
        f"--audit-policy-file={policy}",
        f"--audit-log-path={audit_log}",
        "--audit-log-maxsize=100000",
        "--max-requests-inflight=800",
        "--max-mutating-requests-inflight=400",
    )
    programs = (
        api.controller_manager(node / "kube-controller-manager").plus(
            *_MANY_CALLS,
            "--concurrent-deployment-syncs=20",
            "--concurrent-replicaset-syncs=20",
            # Nothing reads the Endpoints of old: EndpointSlices have taken their place.
            "--controllers=*,-endpoints-controller,-endpointslice-mirroring-controller",
            # A busy machine must not cost a node its leases.
            "--node-monitor-grace-period=10m",
        ),
        api.scheduler(node / "kube-scheduler").plus(*_MANY_CALLS),
        _kwok(kwok / "kwok", api.pki),
    )
    started: list[str] = []
    try:
        with step(progress, "starting the control plane"):
            started.append("etcd")
            api.start_etcd(processes, etcd / "etcd")
            started.append("kube-apiserver")
            api.start_apiserver(processes, apiserver / "kube-apiserver", *audited)
            for program in programs:
                started.append(program.name)
                processes.ensure(program)
        yield Plane(configs["admin"], configs[OPERATOR_USER], configs[SECOND_USER], audit_log, processes)
    finally:
        for name in reversed(started):
            processes.stop(name, grace_seconds=2)


def _kwok(binary: Path, pki: Path) -> Program:
    return Program.of(
        binary,
        f"--kubeconfig={pki / 'kwok.kubeconfig'}",
        f"--config={_STAGES}",
        "--manage-all-nodes=true",
        f"--cidr={NETWORK.pods}",
        "--node-ip=127.0.0.1",
        f"--node-port={_KWOK_PORT}",
        f"--server-address=127.0.0.1:{_KWOK_PORT}",
        "--node-lease-duration-seconds=200",
    )

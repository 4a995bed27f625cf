"""kube-scheduler: gives pods their node."""

from __future__ import annotations

from pathlib import Path

from tools.localcluster.addresses import Ports
from tools.localcluster.process import Program


def program(binary: Path, pki: Path, ports: Ports) -> Program:
    """One scheduler, alone and so without leader election."""
    kubeconfig = pki / "scheduler.kubeconfig"
    return Program(
        "kube-scheduler",
        (
            str(binary),
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={ports.scheduler}",
            f"--cert-dir={pki / 'scheduler'}",
            "--leader-elect=false",
            "--profiling=false",
        ),
    )

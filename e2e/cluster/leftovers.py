"""What killed daemons leave behind, found by what is ours alone: shims, mounts, sockets, links, address leases."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from e2e.cluster import cgroups, host
from e2e.cluster.components.cni import NETWORK_NAME
from e2e.cluster.errors import ClusterError
from e2e.cluster.image_store import CONTAINERD_SOCKET
from e2e.cluster.layout import RUNTIME, Layout
from e2e.cluster.process import observe

CONTAINER_LOGS = Path("/var/log/containers")
CNI_RESULTS = Path("/var/lib/cni/results")
"""Two folders whose places the kubelet and the CNI library fix."""


def is_own_shim(argv: tuple[str, ...]) -> bool:
    """Whether a command line is that of a container shim of this node's containerd."""
    return Path(argv[0]).name == "containerd-shim-runc-v2" and str(CONTAINERD_SOCKET) in argv


def shims() -> list[int]:
    """Pids of this node's container shims."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if (seen := observe(pid)) and is_own_shim(seen.argv)]


def end_shims(timeout_seconds: float = 10.0) -> None:
    """Kill this node's shims."""
    deadline = time.monotonic() + timeout_seconds
    while left := shims():
        if time.monotonic() > deadline:
            raise ClusterError(f"container shims do not end: {left}; end them by hand, then try again")
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def sweep(layout: Layout) -> None:
    """Bring the volatile state to what it is after a reboot: no container, mount, namespace, socket or lease.

    Call it when containerd does not run. The stores and the cluster's data stay.
    """
    end_shims()
    cgroups.remove()
    host.unmount_below([RUNTIME, layout.cluster, layout.store])
    shutil.rmtree(RUNTIME, ignore_errors=True)
    if RUNTIME.exists():
        raise ClusterError(f"{RUNTIME} cannot be removed: something still uses it; see `fuser -m {RUNTIME}`")
    _remove(CNI_RESULTS.glob(f"{NETWORK_NAME}-*"))


def forget_cluster(layout: Layout) -> None:
    """Remove the cluster's own data and the links to its logs; images stay. Call it after `sweep`."""
    if CONTAINER_LOGS.is_dir():
        own = str(layout.cluster)
        _remove(link for link in CONTAINER_LOGS.iterdir() if link.is_symlink() and str(link.readlink()).startswith(own))
        _remove_if_empty(CONTAINER_LOGS)
    for folder in (CNI_RESULTS, CNI_RESULTS.parent):
        _remove_if_empty(folder)
    shutil.rmtree(layout.cluster, ignore_errors=True)
    shutil.rmtree(layout.processes, ignore_errors=True)


def _remove(paths: Iterable[Path]) -> None:
    for path in list(paths):
        path.unlink(missing_ok=True)


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()

"""Cleans up after killed daemons, by marks of this cluster only: shims, mounts, sockets, links, address leases."""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.localcluster.errors import ClusterError
from tools.localcluster.images.image_store import CONTAINERD_SOCKET
from tools.localcluster.layout import RUNTIME, Layout
from tools.localcluster.node import cgroups, host
from tools.localcluster.process import kill_all, observe

CONTAINER_LOGS = Path("/var/log/containers")
CNI_RESULTS = Path("/var/lib/cni/results")
RUNC_STATE = Path("/run/containerd/runc/k8s.io")
"""Folders whose places the kubelet, the CNI library and containerd (for build steps) fix."""
KUBELET_SOCKET = Path("/var/lib/kubelet/device-plugins/kubelet.sock")
"""Socket for device plugins, at the place where they expect it."""

FIXED_FOLDERS = (
    CONTAINER_LOGS,
    CNI_RESULTS,
    CNI_RESULTS.parent,
    KUBELET_SOCKET.parent,
    KUBELET_SOCKET.parent.parent,
    RUNC_STATE,
    RUNC_STATE.parent,
    Path("/run/containerd/fifo"),
    Path("/run/containerd"),
)
"""Folders that are removed if empty, inner ones first: another container runtime may use them."""


def is_own_shim(argv: tuple[str, ...]) -> bool:
    """Returns whether a command line is that of a container shim of this node's containerd."""
    return Path(argv[0]).name == "containerd-shim-runc-v2" and str(CONTAINERD_SOCKET) in argv


def shims() -> list[int]:
    """Pids of this node's container shims."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if (seen := observe(pid)) and is_own_shim(seen.argv)]


def sweep(layout: Layout) -> None:
    """Bring the volatile state to what it is after a reboot: no container, mount, namespace, socket or lease.

    Call it when containerd does not run. The stores and the cluster's data stay.
    """
    kill_all("container shims", shims)
    cgroups.remove()
    host.unmount_below([RUNTIME, layout.cluster, layout.store])
    shutil.rmtree(RUNTIME, ignore_errors=True)
    if RUNTIME.exists():
        raise ClusterError(f"{RUNTIME} cannot be removed: something still uses it; see `fuser -m {RUNTIME}`")
    for result in CNI_RESULTS.glob("*"):
        if _names_runtime(result):
            result.unlink()
    for state in RUNC_STATE.glob("*/state.json"):
        if _names_runtime(state):
            shutil.rmtree(state.parent)


def _names_runtime(file: Path) -> bool:
    """Returns whether a file of the CNI library or of runc is about a container of this node."""
    return f"{RUNTIME}/" in file.read_text(errors="replace")


def forget_cluster(layout: Layout) -> None:
    """Remove the cluster's own data and the links to its logs; images stay. Call it after `sweep`."""
    if CONTAINER_LOGS.is_dir():
        own = str(layout.cluster)
        for link in CONTAINER_LOGS.iterdir():
            if link.is_symlink() and str(link.readlink()).startswith(own):
                link.unlink()
    KUBELET_SOCKET.unlink(missing_ok=True)
    for folder in FIXED_FOLDERS:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    shutil.rmtree(layout.cluster, ignore_errors=True)
    shutil.rmtree(layout.processes, ignore_errors=True)

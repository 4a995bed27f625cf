"""Where everything lies: one cache folder, and one folder under /run for sockets and other volatile state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GO_MODULES = Path(__file__).resolve().parent / "go"
RUNTIME = Path("/run/inflight")
"""Sockets, mounted root file systems and network namespaces of the own node: one node a machine.

Socket paths are limited to 107 bytes, which a folder below a home directory can exceed.
"""


class Layout:
    """Paths below the cache folder `root`. Nothing is created here.

    Attributes:
        store: containerd's and BuildKit's stores: the images. Outlives a cluster.
        cluster: all that belongs to one cluster: keys, etcd's data, the kubelet's folder, configurations.
        host_changes: changes of the host that `down` has to revert.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.go = root / "go"
        self.locks = root / "locks"
        self.logs = root / "logs"
        self.downloads = root / "images"
        self.store = root / "state" / "store"
        self.cluster = root / "state" / "cluster"
        self.processes = root / "state" / "processes"
        self.host_changes = root / "state" / "host-changes.json"
        self.kubeconfig = self.cluster / "pki" / "admin.kubeconfig"


def cache_root(environment: Mapping[str, str], home: Path) -> Path:
    """`$INFLIGHT_CACHE`, else `$XDG_CACHE_HOME/inflight`, else `~/.cache/inflight`."""
    if own := environment.get("INFLIGHT_CACHE"):
        return Path(own).expanduser().absolute()
    if xdg := environment.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().absolute() / "inflight"
    return home / ".cache" / "inflight"


def current() -> Layout:
    """The layout for this process's environment."""
    return Layout(cache_root(os.environ, Path.home()))

"""Where everything lies: one cache folder, and one folder under /run for sockets and other volatile state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GO_MODULES = Path(__file__).resolve().parent / "go"
RUNTIME = Path("/run/inflight")
"""Sockets, mounted root file systems and network namespaces of the own node: one node a machine.

Socket paths are limited to 107 bytes, which a folder below a home directory can exceed.
"""


@dataclass(frozen=True)
class Layout:
    """Paths below the cache folder `root`. Nothing is created here."""

    root: Path

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def go(self) -> Path:
        return self.root / "go"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def downloads(self) -> Path:
        return self.root / "images"

    @property
    def store(self) -> Path:
        """containerd's and BuildKit's stores: the images. Outlives a cluster."""
        return self.root / "state" / "store"

    @property
    def cluster(self) -> Path:
        """Everything that belongs to one cluster: keys, etcd's data, the kubelet's folder, configs."""
        return self.root / "state" / "cluster"

    @property
    def processes(self) -> Path:
        return self.root / "state" / "processes"

    @property
    def host_changes(self) -> Path:
        """Changes of the host that `down` has to revert."""
        return self.root / "state" / "host-changes.json"

    @property
    def kubeconfig(self) -> Path:
        return self.cluster / "pki" / "admin.kubeconfig"


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

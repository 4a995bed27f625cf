"""Checks the machine's requirements; each failure says how to fix it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tools.localcluster import machine
from tools.localcluster.errors import ClusterError
from tools.localcluster.layout import RUNTIME, Layout
from tools.localcluster.node import cgroups
from tools.localcluster.programs import gobuild, goparts

GIGABYTE = 10**9
COLD_DISK_GB, WARM_DISK_GB = 25, 10
"""Free disk: modules and compiler caches (7 GB) and two images with their build caches (15 GB); warm, new layers."""
MEMORY_GB = 4
"""Memory that the components, one build step and a small model take at most together."""


@dataclass(frozen=True)
class Facts:
    """Facts about this machine. A node that runs has its memory already."""

    is_linux: bool
    is_root: bool
    namespace_problem: str | None
    free_disk_bytes: int
    available_memory_bytes: int
    node_runs: bool
    other_owner: str | None
    foreign_pods: bool


def problem(facts: Facts, disk_gb: int, cache: Path) -> str | None:
    """The first reason why the own node cannot run here, as a sentence with what to do; None when it can."""
    otherwise = "or name a cluster in INFLIGHT_KUBECONFIG, or install Docker and kind"
    if not facts.is_linux:
        return f"the local node needs Linux: run this in a Linux machine, {otherwise}"
    if not facts.is_root:
        return f"the local node needs root: run this with sudo, {otherwise}"
    if facts.namespace_problem:
        return (
            f"namespaces cannot be made here ({facts.namespace_problem}): run this outside a container "
            f"or in a privileged one, {otherwise}"
        )
    if facts.other_owner:
        return f"a node of the cache folder {facts.other_owner} runs here: take it down first (INFLIGHT_CACHE names it)"
    if facts.foreign_pods:
        return "another kubelet runs pods on this machine: stop it, or name its cluster in INFLIGHT_KUBECONFIG"
    if facts.free_disk_bytes < disk_gb * GIGABYTE:
        free = facts.free_disk_bytes / GIGABYTE
        return (
            f"{disk_gb} GB of free disk are needed and {free:.0f} GB are free at {cache}: "
            "free some, or set INFLIGHT_CACHE to a folder on a larger disk"
        )
    if not facts.node_runs and facts.available_memory_bytes < MEMORY_GB * GIGABYTE:
        free = facts.available_memory_bytes / GIGABYTE
        return f"{MEMORY_GB} GB of memory are needed and {free:.1f} GB are available: end something else first"
    return None


def gather(layout: Layout, *, node_runs: bool) -> Facts:
    """Find the facts out; where the node runs already, its own pods and memory are no obstacle."""
    if os.uname().sysname != "Linux":
        # Without /proc there is no more to find out, and nothing that would matter.
        return Facts(False, machine.is_root(), None, 0, 0, node_runs, None, False)
    owner_file = RUNTIME / "owner"
    owner = owner_file.read_text().strip() if owner_file.exists() else None
    is_ours = owner == str(layout.root) or (layout.cluster / "settings.json").exists()
    foreign = not is_ours and bool(cgroups.processes_in(cgroups.own_groups()))
    return Facts(
        is_linux=True,
        is_root=machine.is_root(),
        namespace_problem=None if node_runs or not machine.is_root() else machine.namespace_problem(),
        free_disk_bytes=machine.free_disk(layout.root),
        available_memory_bytes=machine.available_memory(),
        node_runs=node_runs,
        other_owner=owner if owner and owner != str(layout.root) else None,
        foreign_pods=foreign,
    )


def default_disk_gb(layout: Layout) -> int:
    """Disk that is needed free: less where everything is built already."""
    built = all(gobuild.is_built(part, layout) for part in goparts.NODE_PARTS)
    return WARM_DISK_GB if built and layout.store.exists() else COLD_DISK_GB


def check(layout: Layout, *, node_runs: bool, disk_gb: int | None = None) -> Facts:
    """Raise ClusterError with the sentence where the own node cannot run; else what was found."""
    facts = gather(layout, node_runs=node_runs)
    found = problem(facts, disk_gb or default_disk_gb(layout), layout.root)
    if found:
        raise ClusterError(found)
    return facts


def check_may_take_down(layout: Layout) -> None:
    """Raise ClusterError where `down` cannot do its work: without root, or where what runs is not of this cache."""
    if not machine.is_root():
        raise ClusterError("taking the local node down needs root: run this with sudo")
    facts = gather(layout, node_runs=True)
    if facts.other_owner:
        raise ClusterError(
            f"the node that runs here belongs to the cache folder {facts.other_owner}: set INFLIGHT_CACHE to it"
        )
    if facts.foreign_pods:
        raise ClusterError("the pods that run here are of another kubelet and are left alone; there is nothing to do")

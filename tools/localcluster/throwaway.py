"""A throw-away API server for tests that need the real API but no node: etcd and kube-apiserver on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tools.localcluster import addresses, certificates, gobuild, goparts, layout
from tools.localcluster.plane import ApiPlane
from tools.localcluster.process import Processes
from tools.localcluster.progress import Progress, to_stdout

SERVICES = "10.96.0.0/16"


@contextmanager
def apiserver_only(state_dir: Path, progress: Progress | None = None) -> Iterator[Path]:
    """Start etcd and kube-apiserver below `state_dir` on free loopback ports; yield the admin's kubeconfig path.

    Needs no root. Builds both programs first where they are not in the cache. Both end with the block.
    Nothing runs controllers: objects are stored and validated, not acted upon.
    """
    say = progress or to_stdout()
    cache = layout.current()
    with ThreadPoolExecutor(2) as pool:
        building = [pool.submit(gobuild.ensure_part, part, cache, say) for part in (goparts.ETCD, goparts.APISERVER)]
        etcd_folder, apiserver_folder = (future.result() for future in building)
    folder = state_dir.absolute()
    plane = ApiPlane(folder, addresses.free_ports(), "127.0.0.1", SERVICES, with_node=False)
    certificates.ensure(plane.pki, certificates.control_plane_leaves(["127.0.0.1"]))
    processes = Processes(layout.Layout(folder))
    try:
        plane.start_etcd(processes, etcd_folder / "etcd")
        yield plane.start_apiserver(processes, apiserver_folder / "kube-apiserver")
    finally:
        processes.stop("kube-apiserver", grace_seconds=2)
        processes.stop("etcd", grace_seconds=2)

"""A real Kubernetes on one machine, for development, the demo and the tests: `python -m tools.localcluster --help`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.localcluster import choose, layout
from tools.localcluster.choose import Choice
from tools.localcluster.docker_clusters import KindCluster, NamedCluster
from tools.localcluster.errors import ClusterError as ClusterError
from tools.localcluster.images import dockerfiles
from tools.localcluster.images.dockerfiles import IMAGES
from tools.localcluster.images.image_store import ImageStore
from tools.localcluster.node import preflight
from tools.localcluster.node.own_node import OwnNode
from tools.localcluster.node.plane import apiserver_only as apiserver_only
from tools.localcluster.programs import inference_pools, kubectl_program, promtool_program
from tools.localcluster.progress import Progress, to_stdout

IMAGE_NAMES = tuple(IMAGES)


def chosen(progress: Progress) -> NamedCluster | KindCluster | OwnNode:
    """The cluster that this machine and environment give, in the order of `choose`."""
    kind = choose.current()
    if kind is Choice.NAMED:
        return NamedCluster(Path(os.environ["INFLIGHT_KUBECONFIG"]).expanduser(), progress)
    if kind is Choice.KIND:
        return KindCluster(layout.current(), progress)
    return OwnNode(layout.current(), progress)


def kubeconfig_path() -> Path:
    """The administrator's kubeconfig of the chosen cluster; it need not exist before `ensure_up`."""
    return chosen(to_stdout()).kubeconfig


def ensure_up(progress: Progress, image_names: Sequence[str] = ()) -> dict[str, str]:
    """Have a cluster that answers, with a Ready node and DNS. Safe to repeat. Raises ClusterError.

    The images `image_names` are built at the same time as the cluster comes up, which is shorter than afterwards;
    returns the references by which pods find them, by name.
    """
    return chosen(progress).up(image_names)


def build_image(
    name: str, progress: Progress, tag: str | None = None, arguments: Mapping[str, str] | None = None
) -> str:
    """Build the image `name` (`engine`, `operator` or `envoy`) where the cluster's pods find it; its reference.

    With a `tag`, a variant of it beside the one that is in use, built with further `arguments` of its Dockerfile.
    """
    image = dockerfiles.named(name)
    return chosen(progress).build(image.variant(tag, arguments or {}) if tag else image)


def own_store(progress: Progress) -> ImageStore:
    """The image store of the machine's own node, for images that no Dockerfile makes.

    Raises:
        ClusterError: the cluster is another one, or does not run.
    """
    cluster = chosen(progress)
    if not isinstance(cluster, OwnNode):
        raise ClusterError("images are imported into the machine's own node only, and the cluster is another one")
    return cluster.require_store()


def kubectl(*args: str, input: str | None = None, check: bool = True) -> str:
    """Output of kubectl against the chosen cluster; with `check`, raises ClusterError when it fails."""
    return kubectl_program.run(kubeconfig_path(), args, input, check=check)


def promtool(progress: Progress | None = None) -> Path:
    """Prometheus' promtool, got when first asked for."""
    return promtool_program.ensure(layout.current(), progress or to_stdout())


def prometheus(progress: Progress | None = None) -> Path:
    """The Prometheus server's program, installed on first use. Raises ClusterError where that is not possible."""
    return promtool_program.ensure_server(layout.current(), progress or to_stdout())


def inference_pool_crd(progress: Progress | None = None) -> Path:
    """The CRD of the Gateway API Inference Extension's InferencePools, downloaded on first use. Raises ClusterError."""
    return inference_pools.ensure(layout.current(), progress or to_stdout())


def require_machine(disk_gb: int | None = None) -> str:
    """A sentence that says the cluster can run here, and how. Raises ClusterError where it cannot."""
    kind = choose.current()
    if kind is Choice.OWN_NODE:
        node = OwnNode(layout.current(), to_stdout())
        facts = preflight.check(node.layout, node_runs=bool(node.processes.running("kubelet")), disk_gb=disk_gb)
        free, memory = facts.free_disk_bytes / 1e9, facts.available_memory_bytes / 1e9
        return f"an own single node can run here: {free:.0f} GB of disk and {memory:.0f} GB of memory are free"
    return f"a cluster is there to use: {kind.value}"

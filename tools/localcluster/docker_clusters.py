"""Clusters whose images Docker builds: one the user names (INFLIGHT_KUBECONFIG), or a kind cluster made here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.localcluster import choose
from tools.localcluster.commands import output
from tools.localcluster.errors import ClusterError
from tools.localcluster.files import remove_tree
from tools.localcluster.images import dockerfiles
from tools.localcluster.images.dockerfiles import Image
from tools.localcluster.layout import REPOSITORY, Layout
from tools.localcluster.programs import kubectl_program
from tools.localcluster.progress import Progress, step

KIND_CLUSTER = "inflight"


def build_command(image: Image, reference: str, proxies: Mapping[str, str]) -> list[str]:
    """`docker build` of an image with the repository as context; the base is the Dockerfile's own default."""
    build_args = {**proxies, **image.arguments}
    arguments = [part for key, value in build_args.items() for part in ("--build-arg", f"{key}={value}")]
    dockerfile = str(REPOSITORY / image.dockerfile)
    return ["docker", "build", "--file", dockerfile, "--tag", reference, *arguments, str(REPOSITORY)]


def pushed_reference(image: Image, prefix: str) -> str:
    """The name under which a named cluster pulls `image`: `prefix` is a registry and path the user can push to."""
    return f"{prefix.rstrip('/')}/inflight-{image.name}:{image.reference.rpartition(':')[2]}"


def kind_create_command(kubeconfig: Path) -> list[str]:
    """`kind create cluster`, which waits for the node and writes the kubeconfig."""
    return ["kind", "create", "cluster", "--name", KIND_CLUSTER, "--kubeconfig", str(kubeconfig), "--wait", "120s"]


def kind_load_command(reference: str) -> list[str]:
    """`kind load`, which copies an image from Docker into the kind node."""
    return ["kind", "load", "docker-image", reference, "--name", KIND_CLUSTER]


def _run(command: Sequence[str], task: str, progress: Progress) -> None:
    with step(progress, task):
        output(command, f"{task} failed ({{last}}); `{{command}}` shows more")


class _DockerCluster:
    def __init__(self, kubeconfig: Path, progress: Progress) -> None:
        self.kubeconfig = kubeconfig
        self.progress = progress

    def _build(self, image: Image, reference: str) -> None:
        command = build_command(image, reference, dockerfiles.proxy_arguments(os.environ))
        _run(command, f"building {reference}", self.progress)

    def status(self) -> list[str]:
        return [kubectl_program.run(self.kubeconfig, ("get", "nodes,pods", "-A", "-o", "wide")).rstrip()]


class NamedCluster(_DockerCluster):
    """The cluster of INFLIGHT_KUBECONFIG: used as it is, never created or removed."""

    def up(self, image_names: Sequence[str] = ()) -> dict[str, str]:
        """Check that it answers; build and push the images asked for; their references by name."""
        if not self.kubeconfig.is_file():
            raise ClusterError(f"INFLIGHT_KUBECONFIG names {self.kubeconfig}, which is no file")
        try:
            kubectl_program.run(self.kubeconfig, ("get", "--raw=/readyz", "--request-timeout=10s"))
        except ClusterError as error:
            raise ClusterError(f"the cluster of INFLIGHT_KUBECONFIG does not answer: {error}") from error
        self.progress(f"the cluster of {self.kubeconfig} answers")
        return {name: self.build(dockerfiles.named(name)) for name in image_names}

    def build(self, image: Image) -> str:
        """Build with Docker and push to INFLIGHT_IMAGE_PREFIX; the pushed reference."""
        prefix = os.environ.get("INFLIGHT_IMAGE_PREFIX")
        if not prefix:
            raise ClusterError(
                "a cluster you name pulls its images from a registry: set INFLIGHT_IMAGE_PREFIX to a registry and path "
                "that you can push to and that the cluster can pull from"
            )
        if not choose.docker_answers():
            raise ClusterError("building images for a cluster you name needs a running Docker daemon: start it")
        reference = pushed_reference(image, prefix)
        self._build(image, reference)
        _run(["docker", "push", reference], f"pushing {reference}", self.progress)
        return reference

    def down(self, *, purge: bool = False) -> None:
        """Refuses: nothing was created, so nothing is removed."""
        raise ClusterError(
            "the cluster of INFLIGHT_KUBECONFIG was not made here and is not taken down; what was put into it "
            "goes with `kubectl delete ifsvc chat` and `helm uninstall inflight -n inflight-system`"
            + ("; without the variable, --purge deletes the cache folder" if purge else "")
        )


class KindCluster(_DockerCluster):
    """A kind cluster of our own name."""

    def __init__(self, layout: Layout, progress: Progress) -> None:
        super().__init__(layout.root / "kind.kubeconfig", progress)

    def _exists(self) -> bool:
        return KIND_CLUSTER in output(["kind", "get", "clusters"], check=False).split()

    def up(self, image_names: Sequence[str] = ()) -> dict[str, str]:
        """Create the cluster unless it is there; build and load the images asked for; their references by name."""
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        if not self._exists():
            _run(kind_create_command(self.kubeconfig), "creating a kind cluster", self.progress)
        elif not self.kubeconfig.exists():
            export = ["kind", "export", "kubeconfig", "--name", KIND_CLUSTER, "--kubeconfig", str(self.kubeconfig)]
            _run(export, "writing the kind cluster's kubeconfig", self.progress)
        return {name: self.build(dockerfiles.named(name)) for name in image_names}

    def build(self, image: Image) -> str:
        """Build with Docker and load into the kind node; the reference."""
        self._build(image, image.reference)
        _run(kind_load_command(image.reference), f"loading {image.reference} into kind", self.progress)
        return image.reference

    def down(self, *, purge: bool = False) -> None:
        """Delete the kind cluster."""
        delete = ["kind", "delete", "cluster", "--name", KIND_CLUSTER, "--kubeconfig", str(self.kubeconfig)]
        _run(delete, "deleting the kind cluster", self.progress)
        if purge:
            remove_tree(self.kubeconfig.parent)

    def status(self) -> list[str]:
        if not self._exists():
            return ["no kind cluster"]
        return super().status()

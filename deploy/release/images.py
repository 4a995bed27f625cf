"""The images of a release: built and pushed for each architecture, then joined under one name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.localcluster import own_store
from tools.localcluster.commands import installed, output
from tools.localcluster.images import base_image, dockerfiles
from tools.localcluster.images.image_store import build_command
from tools.localcluster.images.oci_archive import architecture
from tools.localcluster.layout import REPOSITORY, Layout
from tools.localcluster.programs import gobuild, goparts
from tools.localcluster.progress import Progress, step


@dataclass(frozen=True)
class ReleaseImage:
    """An image of a release.

    Attributes:
        dockerfile: name of the Dockerfile, as `tools.localcluster.build_image` takes it.
        suffix: end of its tags, for a variant beside the one that the chart names.
        arguments: build arguments.
    """

    dockerfile: str
    suffix: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"inflight-{self.dockerfile}"

    def reference(self, registry: str, version: str, machine: str = "") -> str:
        """Its name in `registry`; with `machine` that of the image for one architecture."""
        return f"{registry}/{self.name}:{version}{self.suffix}{f'-{machine}' if machine else ''}"


IMAGES = {
    "operator": ReleaseImage("operator"),
    "engine-gpu": ReleaseImage("engine", arguments={"VARIANT": "gpu"}),
    "engine-cpu": ReleaseImage("engine", "-cpu", {"VARIANT": "cpu"}),
}
"""The chart names the first two. The operator's image is also that of the gateway and brings the plugin for vLLM."""


def build(
    image: ReleaseImage, registry: str, version: str, arguments: Mapping[str, str], *, sbom: bool, progress: Progress
) -> str:
    """Builds an image for this machine's architecture and pushes it, with its provenance; returns its reference.

    BuildKit is the daemon that BUILDKIT_HOST names, else that of the local cluster's own node.

    Args:
        arguments: further build arguments.
        sbom: with a list of its packages too, which BuildKit makes with an image of its own.

    Raises:
        ClusterError: there is no BuildKit, or the build or the push failed.
    """
    reference = image.reference(registry, version, architecture())
    if os.environ.get("BUILDKIT_HOST"):
        buildctl, base = [installed("buildctl")], {}
    else:
        buildctl, base = own_store(progress).buildctl_command(), {"BASE": base_image.REFERENCE}
    given = {**base, "VERSION": version, **image.arguments, **arguments}
    proxies = dockerfiles.proxy_arguments(os.environ)
    # The longer form has the values of all build arguments, and the address of a proxy may have a password.
    provenance = "min" if proxies else "max"
    command = [
        *build_command(
            buildctl,
            REPOSITORY,
            REPOSITORY / dockerfiles.named(image.dockerfile).dockerfile,
            f"type=image,name={reference},push=true,store=false",
            {**proxies, **given},
        ),
        f"--opt=attest:provenance=mode={provenance}",
        *(["--opt=attest:sbom="] if sbom else []),
    ]
    with step(progress, f"building and pushing {reference}"):
        output(command, f"{reference} could not be built and pushed: {{complaint}}")
    return reference


class Crane:
    """The program crane, which reads and joins images in a registry."""

    def __init__(self, cache: Layout, progress: Progress) -> None:
        self.binary: Path = gobuild.ensure_part(goparts.CRANE, cache, progress) / "crane"

    def run(self, *arguments: str) -> str:
        """Output of crane. Raises ClusterError with its complaint."""
        return output([str(self.binary), *arguments]).strip()

    def pinned(self, reference: str) -> str:
        """The reference with the digest that it has now: NAME:TAG@sha256:HEX."""
        return f"{reference}@{self.run('digest', reference)}"

    def join(self, image: ReleaseImage, registry: str, version: str, machines: Sequence[str]) -> str:
        """Joins the images of all architectures, with what is attested of them, under one tag; returns it pinned."""
        reference = image.reference(registry, version)
        parts = [part for machine in machines for part in ("-m", image.reference(registry, version, machine))]
        self.run("index", "append", *parts, "-t", reference)
        return self.pinned(reference)

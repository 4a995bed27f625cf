"""The images of the project, built from the Dockerfiles that users build, and one of Envoy for clusters without a
registry."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tools.localcluster import machine, process
from tools.localcluster.commands import followed
from tools.localcluster.errors import ClusterError
from tools.localcluster.images import base_image
from tools.localcluster.images.image_store import ImageStore, build_command, into_store
from tools.localcluster.layout import REPOSITORY
from tools.localcluster.progress import Progress, step

GIGABYTE = 10**9
_PROXY_NAMES = ("http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True)
class Image:
    """An image to build: its name and its Dockerfile below the repository's root, which is the context.

    Attributes:
        disk_gb: free disk that building it from nothing takes at most.
        arguments: build arguments of the Dockerfile.
    """

    name: str
    reference: str
    dockerfile: str
    disk_gb: int
    arguments: Mapping[str, str] = field(default_factory=dict)

    def variant(self, tag: str, arguments: Mapping[str, str]) -> Image:
        """Returns the image under another tag, built with further arguments."""
        repository = self.reference.rpartition(":")[0]
        return replace(self, reference=f"{repository}:{tag}", arguments={**self.arguments, **arguments})


IMAGES = {
    image.name: image
    for image in (
        Image("engine", "localhost/inflight-engine:dev", "engine_image/Dockerfile", 15),
        Image("operator", "localhost/inflight-operator:dev", "operator/Dockerfile", 2),
        Image("envoy", "localhost/inflight-envoy:dev", "tools/localcluster/envoy/Dockerfile", 1),
    )
}


def named(name: str) -> Image:
    """The image `name`; raises ClusterError for a name that is none."""
    if name not in IMAGES:
        raise ClusterError(f"there is no image {name!r}; the images are: {', '.join(IMAGES)}")
    return IMAGES[name]


def proxy_arguments(environment: Mapping[str, str]) -> dict[str, str]:
    """Build arguments with the host's proxy settings, which BuildKit and Docker know and leave out of the image."""
    names = [*_PROXY_NAMES, *(name.upper() for name in _PROXY_NAMES)]
    return {name: environment[name] for name in names if environment.get(name)}


def require_disk(image: Image, free_bytes: int) -> None:
    """Raise ClusterError where less disk is free than `image` takes."""
    if free_bytes < image.disk_gb * GIGABYTE:
        raise ClusterError(
            f"building the {image.name} image takes up to {image.disk_gb} GB of disk and "
            f"{free_bytes / GIGABYTE:.1f} GB are free: free some, or set INFLIGHT_CACHE to a folder on a larger disk"
        )


class StepReader:
    """Follows BuildKit's plain progress: which Dockerfile step runs, how many are cached, what it said last."""

    def __init__(self) -> None:
        self.current = ""
        self.cached = 0
        self.said: list[str] = []

    def read(self, line: str) -> None:
        if not line.strip():
            return
        if found := re.match(r"#\d+ (\[(?!internal).*\d+/\d+\] .*|exporting to image)", line):
            self.current = " ".join(found.group(1).split())[:60]
        elif re.match(r"#\d+ CACHED", line):
            self.cached += 1
        # What the steps' programs print; BuildKit's own lines after a failure only repeat the Dockerfile.
        if found := re.match(r"#\d+ (?:[\d.]+|ERROR:?) (.*)", line):
            self.said = [*self.said[-(process.LOG_LINES_SHOWN - 1) :], found.group(1)[:300]]

    def text(self) -> str:
        """The step and the last thing it said."""
        return f"{self.current}: {self.said[-1][:60]}" if self.said else self.current


def build_in_store(store: ImageStore, image: Image, progress: Progress) -> str:
    """Build `image` into the node's store, where containers find it at once; its reference."""
    dockerfile = REPOSITORY / image.dockerfile
    if not dockerfile.is_file():
        raise ClusterError(f"{image.dockerfile} is missing: run this in a whole copy of the repository")
    is_new = image.reference not in store.image_names()
    if is_new:
        require_disk(image, machine.free_disk(store.layout.root))
    command = build_command(
        store.buildctl_command(),
        REPOSITORY,
        dockerfile,
        into_store(image.reference),
        {"BASE": base_image.REFERENCE, **proxy_arguments(os.environ), **image.arguments},
    )
    reader = StepReader()
    started = time.monotonic()
    with step(progress, f"building {image.reference}", reader.text):
        code = followed(command, reader.read, set())
        if code:
            raise ClusterError(
                f"{image.dockerfile} could not be built; its output ends with:\n"
                + "\n".join(f"  {line}" for line in reader.said)
            )
    size = store.image_bytes(image.reference) / GIGABYTE
    seconds = time.monotonic() - started
    progress(f"{image.reference}: {size:.2f} GB, built in {seconds:.1f} s, {reader.cached} steps from cache")
    return image.reference

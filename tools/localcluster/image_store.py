"""containerd and BuildKit of the own node: the store that pods start from and builds write to."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.localcluster import gobuild, goparts, oci_archive, packages, probe
from tools.localcluster.commands import output
from tools.localcluster.components import buildkit, cni, containerd
from tools.localcluster.errors import ClusterError
from tools.localcluster.files import write_json, write_whole
from tools.localcluster.layout import RUNTIME, Layout
from tools.localcluster.process import Processes
from tools.localcluster.settings import Settings

CONTAINERD_SOCKET = RUNTIME / "containerd.sock"
BUILDKIT_SOCKET = RUNTIME / "buildkitd.sock"


class ImageStore:
    """The two daemons of one layout, and questions and orders to them."""

    def __init__(self, layout: Layout, settings: Settings, processes: Processes) -> None:
        self.layout = layout
        self.settings = settings
        self.processes = processes

    def start_containerd(self) -> None:
        """Start containerd (built already) and wait until it answers."""
        binaries = gobuild.folder_of(goparts.CONTAINERD, self.layout)
        plugins = gobuild.folder_of(goparts.CNI, self.layout)
        folder = self.layout.cluster / "cni"
        network = write_json(
            folder / "10-inflight.conflist", cni.configuration(self.settings.network, RUNTIME / "cni-leases")
        )
        configuration = self.layout.cluster / "containerd.toml"
        text = containerd.configuration(self.layout.store, RUNTIME, CONTAINERD_SOCKET, plugins, folder)
        write_whole(configuration, text)
        RUNTIME.mkdir(mode=0o711, exist_ok=True)
        (RUNTIME / "shims").mkdir(mode=0o700, exist_ok=True)
        program = containerd.program(binaries / "containerd", configuration, packages.SEARCH_PATH)
        self.processes.ensure(program, text + network)
        self.processes.wait_ready("containerd", lambda: probe.succeeds(self.ctr_command("version")), 60)

    def start_buildkit(self) -> None:
        """Start buildkitd (containerd answers already) and wait until its worker is there."""
        binaries = gobuild.folder_of(goparts.BUILDKIT, self.layout)
        configuration = self.layout.cluster / "buildkitd.toml"
        text = buildkit.configuration(
            self.layout.store, BUILDKIT_SOCKET, RUNTIME / "buildkit-tracing.sock", CONTAINERD_SOCKET
        )
        write_whole(configuration, text)
        temporary = self.layout.cluster / "buildkit-mounts"
        temporary.mkdir(exist_ok=True)
        program = buildkit.program(binaries / "buildkitd", configuration, packages.SEARCH_PATH, temporary)
        self.processes.ensure(program, text)
        question = self.buildctl_command("debug", "workers")
        self.processes.wait_ready("buildkitd", lambda: probe.succeeds(question), 60)

    def ctr_command(self, *arguments: str) -> list[str]:
        binary = gobuild.folder_of(goparts.CONTAINERD, self.layout) / "ctr"
        return containerd.ctr(binary, CONTAINERD_SOCKET, *arguments)

    def buildctl_command(self, *arguments: str) -> list[str]:
        binary = gobuild.folder_of(goparts.BUILDKIT, self.layout) / "buildctl"
        return buildkit.buildctl_command(binary, BUILDKIT_SOCKET, *arguments)

    def ctr(self, *arguments: str) -> str:
        """Output of `ctr`; raises ClusterError with its complaint."""
        failure = f"containerd refused `ctr {' '.join(arguments)}`: {{complaint}}"
        return output(self.ctr_command(*arguments), failure)

    def image_names(self) -> set[str]:
        return set(self.ctr("images", "list", "--quiet").split())

    def image_bytes(self, reference: str) -> int:
        """Size of an image's uncompressed layers."""
        listing = self.ctr("images", "list", f"name=={reference}")
        return parse_image_size(listing, reference)

    def import_archive(self, archive: Path) -> None:
        """Import an image archive and unpack it, so that the first pod of it starts at once."""
        self.ctr("images", "import", "--local", "--snapshotter", "overlayfs", str(archive))

    def import_binary(self, reference: str, binary: Path, user: str = "") -> None:
        """Make an image of one static program, like a Dockerfile `FROM scratch` would, and import it."""
        folder = self.layout.downloads
        folder.mkdir(parents=True, exist_ok=True)
        layer, archive = folder / f"{binary.name}.layer.tar", folder / f"{binary.name}.tar"
        oci_archive.layer_of_files(layer, {binary.name: (binary.read_bytes(), 0o755)})
        config = oci_archive.ImageConfig(entrypoint=(f"/{binary.name}",), user=user)
        oci_archive.write(archive, reference, [layer], config)
        self.import_archive(archive)
        layer.unlink()
        archive.unlink()

    def remove_containers(self) -> int:
        """Remove all containers and sandboxes that the store knows; how many there were.

        Images stay. Call it with no kubelet running.
        """
        with ThreadPoolExecutor(8) as pool:
            for task in self.ctr("tasks", "list", "--quiet").split():
                delete = self.ctr_command("tasks", "delete", "--force", task)
                pool.submit(subprocess.run, delete, capture_output=True, check=False)
        containers = self.ctr("containers", "list", "--quiet").split()
        if containers:
            self.ctr("containers", "delete", *containers)
        sandboxes = [line.split()[0] for line in self.ctr("sandboxes", "list").splitlines()[1:] if line.strip()]
        if sandboxes:
            self.ctr("sandboxes", "remove", "--force", *sandboxes)
        return len(containers) + len(sandboxes)

    def forget_pods(self) -> None:
        """Delete what containerd keeps on disk for pods besides its database; containerd must not run."""
        for folder in ("io.containerd.grpc.v1.cri", "io.containerd.runtime.v2.task"):
            shutil.rmtree(self.layout.store / "containerd" / folder, ignore_errors=True)


def parse_image_size(listing: str, reference: str) -> int:
    """Bytes from the table of `ctr images list`, whose size column reads like `1.2 GiB`."""
    units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    for line in listing.splitlines():
        fields = line.split()
        if fields and fields[0] == reference:
            for value, unit in itertools.pairwise(fields):
                if unit in units:
                    return int(float(value) * units[unit])
    raise ClusterError(f"the image {reference} is not in the node's store; build it first")

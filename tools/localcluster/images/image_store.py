"""containerd and BuildKit of the own node: the store that pods start from and builds write to."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.localcluster import probe
from tools.localcluster.commands import output
from tools.localcluster.errors import ClusterError
from tools.localcluster.files import write_json, write_whole
from tools.localcluster.images import oci_archive
from tools.localcluster.layout import RUNTIME, Layout
from tools.localcluster.node.addresses import Network
from tools.localcluster.node.cgroups import BUILD_CGROUP
from tools.localcluster.node.settings import Settings
from tools.localcluster.process import Processes, Program
from tools.localcluster.programs import gobuild, goparts, packages

CONTAINERD_SOCKET = RUNTIME / "containerd.sock"
BUILDKIT_SOCKET = RUNTIME / "buildkitd.sock"
NAMESPACE = "k8s.io"
PAUSE_IMAGE = "localhost/pause:1"

CACHE_LIMIT_BYTES = 16 * 10**9
"""Build cache kept at most: one generation of the largest image, what its steps downloaded, and room for the next one.
"""
CACHE_KEPT_BYTES = 10 * 10**9
"""Build cache kept even on a full disk: one generation of the largest image."""
FREE_DISK_BYTES = 10 * 10**9
"""Free disk below which build cache is deleted, beyond a part that is always kept."""


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
            folder / "10-inflight.conflist", network_configuration(self.settings.network, RUNTIME / "cni-leases")
        )
        configuration = self.layout.cluster / "containerd.toml"
        text = containerd_configuration(self.layout.store, RUNTIME, CONTAINERD_SOCKET, plugins, folder)
        write_whole(configuration, text)
        RUNTIME.mkdir(mode=0o711, exist_ok=True)
        (RUNTIME / "shims").mkdir(mode=0o700, exist_ok=True)
        program = containerd(binaries / "containerd", configuration, packages.SEARCH_PATH)
        self.processes.ensure(program, text + network)
        self.processes.wait_ready("containerd", lambda: probe.succeeds(self.ctr_command("version")), 60)

    def start_buildkit(self) -> None:
        """Start buildkitd (containerd answers already) and wait until its worker is there."""
        binaries = gobuild.folder_of(goparts.BUILDKIT, self.layout)
        configuration = self.layout.cluster / "buildkitd.toml"
        text = buildkit_configuration(
            self.layout.store, BUILDKIT_SOCKET, RUNTIME / "buildkit-tracing.sock", CONTAINERD_SOCKET
        )
        write_whole(configuration, text)
        temporary = self.layout.cluster / "buildkit-mounts"
        temporary.mkdir(exist_ok=True)
        environment = {"PATH": packages.SEARCH_PATH, "TMPDIR": str(temporary)}
        program = Program.of(binaries / "buildkitd", f"--config={configuration}", **environment)
        self.processes.ensure(program, text)
        question = self.buildctl_command("debug", "workers")
        self.processes.wait_ready("buildkitd", lambda: probe.succeeds(question), 60)

    def ctr_command(self, *arguments: str) -> list[str]:
        binary = gobuild.folder_of(goparts.CONTAINERD, self.layout) / "ctr"
        return [str(binary), "--address", str(CONTAINERD_SOCKET), "--namespace", NAMESPACE, *arguments]

    def buildctl_command(self, *arguments: str) -> list[str]:
        binary = gobuild.folder_of(goparts.BUILDKIT, self.layout) / "buildctl"
        return [str(binary), f"--addr=unix://{BUILDKIT_SOCKET}", *arguments]

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

    def import_archive(self, archive: Path, *, keep_layers: bool = True) -> None:
        """Import an image archive and unpack it, so that the first pod of it starts at once.

        Args:
            keep_layers: False: its files alone are kept, and not the layers beside them, which only other images on
                top of it need.
        """
        options = () if keep_layers else ("--discard-unpacked-layers",)
        self.ctr("images", "import", "--local", "--snapshotter", "overlayfs", *options, str(archive))

    def remove_images(self, names: Collection[str]) -> None:
        """Remove images, and what they alone held, once that is done."""
        if names:
            self.ctr("images", "remove", "--sync", *sorted(names))

    def remove_replaced(self) -> None:
        """Remove the images that builds took the name from. containerd keeps each under its digest, so that its layers
        stay for ever. Call it without containers."""
        self.remove_images(replaced_images(self.ctr("images", "list")))

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


def quoted(value: object) -> str:
    """A TOML basic string, which a JSON string is."""
    return json.dumps(str(value))


def containerd(binary: Path, configuration_file: Path, search_path: str) -> Program:
    """Returns containerd; its shim lies beside it, runc is found on the rest of `search_path`."""
    return Program.of(binary, f"--config={configuration_file}", PATH=f"{binary.parent}:{search_path}")


def containerd_configuration(
    store: Path, runtime: Path, socket: Path, cni_binaries: Path, cni_configuration: Path
) -> str:
    """Returns config.toml, version 3 (https://github.com/containerd/containerd/blob/main/docs/cri/config.md)."""

    return f"""version = 3
root = {quoted(store / "containerd")}
state = {quoted(runtime / "containerd")}
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing"]

[grpc]
  address = {quoted(socket)}

[ttrpc]
  address = {quoted(str(socket) + ".ttrpc")}

[plugins."io.containerd.shim.v1.manager"]
  socket_dir = {quoted(runtime / "shims")}

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = {quoted(PAUSE_IMAGE)}

[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE a process cannot lower its OOM score; containers start all the same then.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
      Root = {quoted(runtime / "runc")}
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [{quoted(cni_binaries)}]
    conf_dir = {quoted(cni_configuration)}
"""


def network_configuration(network: Network, leases: Path) -> dict[str, Any]:
    """A CNI network list (https://www.cni.dev/docs/spec/): a routed veth pair for each pod, addresses of their range.

    The `ptp` plugin and not a bridge: traffic between two pods is routed, so that service addresses work without the
    kernel's br_netfilter and without changing how the host's other bridges are filtered. Host ports of pods are not
    wired up, and NetworkPolicy objects are accepted but not enforced.

    Args:
        leases: folder in which address leases are kept.
    """
    return {
        "cniVersion": "1.0.0",
        "name": "inflight",
        "plugins": [
            {
                "type": "ptp",
                # Outgoing packets are masqueraded by one rule of the node's own table instead of one per pod.
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(leases),
                    "ranges": [[{"subnet": network.pods, "gateway": network.node_address}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def buildkit_configuration(store: Path, socket: Path, tracing_socket: Path, containerd: Path) -> str:
    """Returns buildkitd.toml (https://github.com/moby/buildkit/blob/master/docs/buildkitd.toml.md)."""

    return f"""root = {quoted(store / "buildkit")}

[grpc]
  address = [{quoted(f"unix://{socket}")}]

[otel]
  socketPath = {quoted(tracing_socket)}

[history]
  maxEntries = 5

[worker.oci]
  enabled = false

[worker.containerd]
  enabled = true
  address = {quoted(containerd)}
  namespace = {quoted(NAMESPACE)}
  networkMode = "host"
  defaultCgroupParent = "/{BUILD_CGROUP}"
  gc = true
  reservedSpace = {CACHE_KEPT_BYTES}
  maxUsedSpace = {CACHE_LIMIT_BYTES}
  minFreeSpace = {FREE_DISK_BYTES}
"""


def into_store(image: str) -> str:
    """The output of a build that is the image `image` in the node's store.

    Uncompressed and unpacked at once: a pod can start from it, and compressing would be most of the time.
    """
    return f"type=image,name={image},unpack=true,compression=uncompressed"


def build_command(
    buildctl: Sequence[str], context: Path, dockerfile: Path, output: str, build_args: Mapping[str, str]
) -> list[str]:
    """Command line that builds `dockerfile` (a path) with the folder `context`.

    Args:
        buildctl: the program with its daemon's address.
        output: what becomes of the image, as `buildctl build --output` has it.
    """
    command = [
        *buildctl,
        "build",
        "--progress=plain",
        "--frontend=dockerfile.v0",
        f"--local=context={context}",
        f"--local=dockerfile={dockerfile.parent}",
        f"--opt=filename={dockerfile.name}",
        "--opt=image-resolve-mode=local",
        f"--output={output}",
    ]
    return command + [f"--opt=build-arg:{key}={value}" for key, value in build_args.items()]


def replaced_images(listing: str) -> set[str]:
    """Names from the table of `ctr images list` that are digests, of images that have no other name.

    The plugin for Kubernetes names each image by the digest of its configuration, too (the third column is that of its
    manifest).
    """
    targets = {fields[0]: fields[2] for fields in map(str.split, listing.splitlines()[1:]) if fields}
    named = {target for name, target in targets.items() if not name.startswith("sha256:")}
    return {name for name, target in targets.items() if name.startswith("sha256:") and target not in named}


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

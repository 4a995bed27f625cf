"""The programs that are built from Go modules, and under which name a build is kept."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from tools.localcluster.layout import GO_MODULES

BUILD_FLAGS = ("-trimpath", "-buildvcs=false")


@dataclass(frozen=True)
class Part:
    """A `go build`: `packages` of the module folder `module`, with the build tags `tags`."""

    name: str
    module: str
    packages: tuple[str, ...]
    tags: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return GO_MODULES / self.module

    @property
    def binaries(self) -> tuple[str, ...]:
        """Names of the programs: those of the packages, of a single one that of the part."""
        return (self.name,) if len(self.packages) == 1 else tuple(each.rsplit("/", 1)[-1] for each in self.packages)


def _below(prefix: str, *packages: str) -> tuple[str, ...]:
    return tuple(f"{prefix}/{package}" for package in packages)


KUBERNETES = "k8s.io/kubernetes"
ETCD = Part("etcd", "etcd", ("go.etcd.io/etcd/server/v3",))
# On its own, so that tests which need only an API server wait for nothing else.
APISERVER = Part("kube-apiserver", "kubernetes", (f"{KUBERNETES}/cmd/kube-apiserver",))
NODE = Part(
    "kubernetes-node",
    "kubernetes",
    _below(f"{KUBERNETES}/cmd", "kubelet", "kube-proxy", "kube-scheduler", "kube-controller-manager"),
)
CONTAINERD = Part(
    "containerd",
    "containerd",
    _below("github.com/containerd/containerd/v2/cmd", "containerd", "containerd-shim-runc-v2", "ctr"),
)
CNI = Part(
    "cni",
    "cni",
    _below("github.com/containernetworking/plugins/plugins", "main/ptp", "main/loopback", "ipam/host-local"),
)
BUILDKIT = Part("buildkit", "buildkit", _below("github.com/moby/buildkit/cmd", "buildkitd", "buildctl"))
COREDNS = Part("coredns", "coredns", (".",))
PAUSE = Part("pause", "pause", (".",))
# Without the clients of thirty clouds: what checks metrics and rules discovers no targets.
PROMTOOL = Part("promtool", "promtool", ("github.com/prometheus/prometheus/cmd/promtool",), tags=("remove_all_sd",))
# Fake nodes and pods, for the operator's benchmark alone.
KWOK = Part("kwok", "kwok", ("sigs.k8s.io/kwok/cmd/kwok",))
# For releases and the tests of them: a check of the workflows, a registry, and what reads and joins images in one.
ACTIONLINT = Part("actionlint", "actionlint", ("github.com/rhysd/actionlint/cmd/actionlint",))
REGISTRY = Part("registry", "distribution", (".",))
CRANE = Part("crane", "crane", ("github.com/google/go-containerregistry/cmd/crane",))
# How tools that wait for resources see a service, for the test of its conditions alone.
KSTATUS = Part("kstatus", "kstatus", (".",))
# Google Cloud Storage, for the test of models that are there alone.
GCS = Part("fake-gcs-server", "fake-gcs-server", ("github.com/fsouza/fake-gcs-server",))

NODE_PARTS = (CONTAINERD, PAUSE, CNI, ETCD, BUILDKIT, APISERVER, COREDNS, NODE)
"""Parts of the own node, in the order in which they are built: those that image builds need come first, so that images
are built while Kubernetes still compiles."""


def required_version(go_mod: str, module: str) -> str:
    """The version of `module` that the text of a go.mod requires, like `v1.36.3`."""
    found = re.search(rf"^(?:require)?\s*{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if not found:
        raise ValueError(f"go.mod requires no {module}")
    return found.group(1)


def linker_flags(part: Part, go_mod: str) -> str:
    """Value of `-ldflags`: no symbol table, and for Kubernetes the version that `kubectl version` shows."""
    flags = ["-s", "-w"]
    if part.packages[0].startswith(f"{KUBERNETES}/"):
        version = required_version(go_mod, KUBERNETES)
        major, minor, _ = version.lstrip("v").split(".", 2)
        stamp = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
        flags += [f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamp.items()]
    return " ".join(flags)


def build_arguments(part: Part, go_mod: str, output: Path) -> list[str]:
    """Arguments after `go` that build all packages of `part` into the folder `output`."""
    # A single package would be named after its folder or major version ("v3"): name the file then.
    target = str(output / part.binaries[0]) if len(part.packages) == 1 else f"{output}/"
    flags = [*BUILD_FLAGS, *_tag_flags(part), "-ldflags", linker_flags(part, go_mod)]
    return ["build", "-v", *flags, "-o", target, *part.packages]


def _tag_flags(part: Part) -> tuple[str, ...]:
    return ("-tags", ",".join(part.tags)) if part.tags else ()


def fingerprint(part: Part) -> str:
    """Twelve hex digits that change when the sources, the pinned modules or the flags of `part` do."""
    digest = hashlib.sha256()
    for path in sorted(part.folder.iterdir()):
        if path.name in ("go.mod", "go.sum") or path.suffix == ".go":
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    go_mod = (part.folder / "go.mod").read_text()
    flags = (*BUILD_FLAGS, *_tag_flags(part))
    digest.update(repr((part.packages, flags, linker_flags(part, go_mod))).encode())
    return digest.hexdigest()[:12]

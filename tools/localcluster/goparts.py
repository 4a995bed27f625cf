"""The programs that are built from Go modules, and under which name a build is kept."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.localcluster.layout import GO_MODULES

BUILD_FLAGS = ("-trimpath", "-buildvcs=false")


@dataclass(frozen=True)
class Part:
    """One `go build`: `packages` of the module folder `module` become `binaries`.

    Attributes:
        version_of: the required module whose version is stamped into a Kubernetes binary.
        tags: build tags.
    """

    name: str
    module: str
    packages: tuple[str, ...]
    binaries: tuple[str, ...]
    version_of: str | None = None
    tags: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return GO_MODULES / self.module


_KUBERNETES = "k8s.io/kubernetes/cmd"
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_CNI = "github.com/containernetworking/plugins/plugins"
_BUILDKIT = "github.com/moby/buildkit/cmd"


def _part(
    name: str,
    module: str,
    prefix: str,
    packages: tuple[str, ...],
    *,
    version_of: str | None = None,
    tags: tuple[str, ...] = (),
) -> Part:
    return Part(
        name=name,
        module=module,
        packages=tuple(f"{prefix}/{package}" for package in packages),
        binaries=tuple(package.rsplit("/", 1)[-1] for package in packages),
        version_of=version_of,
        tags=tags,
    )


ETCD = Part("etcd", "etcd", ("go.etcd.io/etcd/server/v3",), ("etcd",))
# On its own, so that tests which need only an API server wait for nothing else.
APISERVER = _part("kube-apiserver", "kubernetes", _KUBERNETES, ("kube-apiserver",), version_of="k8s.io/kubernetes")
NODE = _part(
    "kubernetes-node",
    "kubernetes",
    _KUBERNETES,
    ("kubelet", "kube-proxy", "kube-scheduler", "kube-controller-manager"),
    version_of="k8s.io/kubernetes",
)
CONTAINERD = _part("containerd", "containerd", _CONTAINERD, ("containerd", "containerd-shim-runc-v2", "ctr"))
CNI = _part("cni", "cni", _CNI, ("main/ptp", "main/loopback", "ipam/host-local"))
BUILDKIT = _part("buildkit", "buildkit", _BUILDKIT, ("buildkitd", "buildctl"))
COREDNS = Part("coredns", "coredns", (".",), ("coredns",))
PAUSE = Part("pause", "pause", (".",), ("pause",))
# Without the clients of thirty clouds: what checks metrics and rules discovers no targets.
PROMTOOL = _part("promtool", "promtool", "github.com/prometheus/prometheus/cmd", ("promtool",), tags=("remove_all_sd",))
# Fake nodes and pods, for the operator's benchmark alone.
KWOK = _part("kwok", "kwok", "sigs.k8s.io/kwok/cmd", ("kwok",))

NODE_PARTS = (ETCD, APISERVER, NODE, CONTAINERD, CNI, BUILDKIT, COREDNS, PAUSE)
"""Parts of the own node."""


def required_version(go_mod: str, module: str) -> str:
    """The version of `module` that the text of a go.mod requires, like `v1.36.3`."""
    found = re.search(rf"^(?:require)?\s*{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if not found:
        raise ValueError(f"go.mod requires no {module}")
    return found.group(1)


def linker_flags(part: Part, go_mod: str) -> str:
    """Value of `-ldflags`: no symbol table, and for Kubernetes the version that `kubectl version` shows."""
    flags = ["-s", "-w"]
    if part.version_of:
        version = required_version(go_mod, part.version_of)
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


def minimum_go(go_mods: Iterable[str]) -> tuple[int, int, int]:
    """The newest `go` line among the texts of go.mod files, as (1, 26, 8)."""
    versions = [(1, 0, 0)]
    for text in go_mods:
        if found := re.search(r"^go (\d+)\.(\d+)(?:\.(\d+))?", text, re.MULTILINE):
            versions.append((int(found.group(1)), int(found.group(2)), int(found.group(3) or 0)))
    return max(versions)

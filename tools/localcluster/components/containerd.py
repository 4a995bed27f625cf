"""containerd: images and containers, with folders and socket separate from any other containerd."""

from __future__ import annotations

import json
from pathlib import Path

from tools.localcluster.process import Program

NAMESPACE = "k8s.io"
PAUSE_IMAGE = "localhost/pause:1"


def configuration(store: Path, runtime: Path, socket: Path, cni_binaries: Path, cni_configuration: Path) -> str:
    """config.toml, version 3 (https://github.com/containerd/containerd/blob/main/docs/cri/config.md)."""

    def quoted(value: object) -> str:
        return json.dumps(str(value))  # a JSON string is a TOML basic string

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


def program(binary: Path, configuration_file: Path, search_path: str) -> Program:
    """containerd; its shim lies beside it, runc is found on the rest of `search_path`."""
    return Program(
        "containerd",
        (str(binary), f"--config={configuration_file}"),
        {"PATH": f"{binary.parent}:{search_path}"},
    )


def ctr(binary: Path, socket: Path, *arguments: str) -> list[str]:
    """Command line of `ctr` in the namespace that Kubernetes uses."""
    return [str(binary), "--address", str(socket), "--namespace", NAMESPACE, *arguments]

"""BuildKit: builds Dockerfiles straight into the node's image store, without a push, a pull or a second copy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tools.localcluster.components.containerd import NAMESPACE
from tools.localcluster.process import Program

CACHE_LIMIT_BYTES = 24 * 10**9
"""Build cache kept at most: two generations of the largest image and what its steps downloaded."""
CACHE_KEPT_BYTES = 10 * 10**9
"""Build cache kept even on a full disk: one generation of the largest image."""
FREE_DISK_BYTES = 10 * 10**9
"""Where less than this is free, build cache beyond what is always kept goes."""

BUILD_CGROUP = "inflight-build"
"""Control group of build steps, below the root."""


def configuration(store: Path, socket: Path, tracing_socket: Path, containerd: Path) -> str:
    """buildkitd.toml (https://github.com/moby/buildkit/blob/master/docs/buildkitd.toml.md)."""

    def quoted(value: object) -> str:
        return json.dumps(str(value))

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


def program(binary: Path, configuration_file: Path, search_path: str, temporary: Path) -> Program:
    """buildkitd, which mounts what it builds on in the folder `temporary`."""
    environment = {"PATH": search_path, "TMPDIR": str(temporary)}
    return Program("buildkitd", (str(binary), f"--config={configuration_file}"), environment)


def build_command(
    buildctl: Path, socket: Path, context: Path, dockerfile: Path, image: str, build_args: Mapping[str, str]
) -> list[str]:
    """Command line that builds `dockerfile` (a path) with the folder `context` into the node's store as `image`.

    Uncompressed and unpacked at once: a pod can start from it, and compressing would be most of the time.
    """
    command = [
        *buildctl_command(buildctl, socket, "build", "--progress=plain", "--frontend=dockerfile.v0"),
        f"--local=context={context}",
        f"--local=dockerfile={dockerfile.parent}",
        f"--opt=filename={dockerfile.name}",
        "--opt=image-resolve-mode=local",
        f"--output=type=image,name={image},unpack=true,compression=uncompressed",
    ]
    return command + [f"--opt=build-arg:{key}={value}" for key, value in build_args.items()]


def buildctl_command(buildctl: Path, socket: Path, *arguments: str) -> list[str]:
    """Command line of `buildctl` against the daemon at `socket`."""
    return [str(buildctl), f"--addr=unix://{socket}", *arguments]

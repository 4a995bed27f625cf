"""Writes image archives (https://github.com/opencontainers/image-spec, image layout in a tar) without a builder."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MACHINE_TO_GO = {"x86_64": "amd64", "aarch64": "arm64"}
_TYPE = "application/vnd.oci.image."


@dataclass(frozen=True)
class ImageConfig:
    """The program that a container of the image runs by default."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""

    def as_oci(self) -> dict[str, Any]:
        filled = {
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.command),
            "Env": [f"{key}={value}" for key, value in self.environment.items()],
            "User": self.user,
        }
        return {key: value for key, value in filled.items() if value}


def layer_of_files(path: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """Write the layer `path`: name in the image -> (content, mode). The same input gives the same bytes."""
    with tarfile.open(path, "w") as tar:
        for name, (content, mode) in sorted(files.items()):
            add(tar, name, content, mode)


def write(path: Path, reference: str, layers: Sequence[Path], config: ImageConfig) -> None:
    """Write an archive for `ctr images import`: `layers` (tar files, uncompressed) under the name `reference`."""
    described = []
    for layer in layers:
        with layer.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        described.append(_descriptor("layer.v1.tar", digest, layer.stat().st_size))
    root = {"type": "layers", "diff_ids": [layer["digest"] for layer in described]}
    system = {"architecture": architecture(), "os": "linux", "config": config.as_oci(), "rootfs": root}
    with tarfile.open(path, "w") as tar:
        head = _add_blob(tar, "config.v1+json", system)
        kind = {"schemaVersion": 2, "mediaType": f"{_TYPE}manifest.v1+json"}
        manifest = _add_blob(tar, "manifest.v1+json", {**kind, "config": head, "layers": described})
        manifest["annotations"] = {"io.containerd.image.name": reference}
        add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        add(tar, "index.json", _json({"schemaVersion": 2, "manifests": [manifest]}))
        for layer, descriptor in zip(layers, described, strict=True):
            tar.add(layer, _blob_name(descriptor))


def architecture() -> str:
    """This machine's architecture as images name it."""
    machine = os.uname().machine
    return MACHINE_TO_GO.get(machine, machine)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": f"{_TYPE}{kind}", "digest": f"sha256:{digest}", "size": size}


def _blob_name(descriptor: Mapping[str, Any]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def _add_blob(tar: tarfile.TarFile, kind: str, value: object) -> dict[str, Any]:
    content = _json(value)
    descriptor = _descriptor(kind, hashlib.sha256(content).hexdigest(), len(content))
    add(tar, _blob_name(descriptor), content)
    return descriptor


def add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    """Add a file to a layer. The same input gives the same bytes."""
    entry = tarfile.TarInfo(name.lstrip("/"))
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))

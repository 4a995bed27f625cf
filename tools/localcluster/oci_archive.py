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
_CHUNK = 1 << 20


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
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))


def write(path: Path, reference: str, layers: Sequence[Path], config: ImageConfig) -> None:
    """Write an archive for `ctr images import`: `layers` (tar files, uncompressed) under the name `reference`."""
    digests = [_digest_of_file(layer) for layer in layers]
    config_blob = _json(
        {
            "architecture": architecture(),
            "os": "linux",
            "config": config.as_oci(),
            "rootfs": {"type": "layers", "diff_ids": digests},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config_blob),
            "layers": [
                {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": layer.stat().st_size}
                for digest, layer in zip(digests, layers, strict=True)
            ],
        }
    )
    described = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    described["annotations"] = {"io.containerd.image.name": reference}
    index = _json({"schemaVersion": 2, "manifests": [described]})
    with tarfile.open(path, "w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", index)
        for blob in (config_blob, manifest):
            _add(tar, _blob_name(_digest(blob)), blob)
        for digest, layer in zip(digests, layers, strict=True):
            tar.add(layer, _blob_name(digest))


def architecture() -> str:
    """This machine's architecture as images name it."""
    machine = os.uname().machine
    return MACHINE_TO_GO.get(machine, machine)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _digest_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def _blob_name(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))

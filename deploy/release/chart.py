"""The chart of a release, which names its images by digest, and the plain manifests that it renders."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from deploy import manifest
from tools.localcluster import ClusterError
from tools.localcluster.commands import output
from tools.testbed import helm


def stamped(values: str, name: str, pinned: str) -> str:
    """The text of values.yaml with another default of the image `name`.

    Args:
        pinned: REPOSITORY:TAG@sha256:HEX. The digest is part of the tag, so that who sets another tag gets it.

    Raises:
        ClusterError: the values do not have one such image without a tag.
    """
    repository, _, tag = pinned.partition("@")[0].rpartition(":")
    tag += pinned.removeprefix(f"{repository}:{tag}")
    found = re.compile(rf'^( *)repository: {re.escape(name)}\n((?:.*\n)*?)\1tag: ""$', re.MULTILINE)
    changed, count = found.subn(rf'\1repository: {repository}\n\2\1tag: "{tag}"', values)
    if count != 1:
        raise ClusterError(f"values.yaml has {count} images {name} without a tag, and not one")
    return changed


def package(images: Mapping[str, str], version: str, out: Path) -> Path:
    """Writes the chart of `version` with these images (by name, pinned) into the folder `out`; returns its archive."""
    folder = out / helm.CHART.name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(helm.CHART, folder)
    values = (folder / "values.yaml").read_text()
    for name, pinned in images.items():
        values = stamped(values, name, pinned)
    (folder / "values.yaml").write_text(values)
    versions = (f"--version={version}", f"--app-version={version}")
    output([helm.binary(), "package", str(folder), *versions, "--destination", str(out)])
    shutil.rmtree(folder)
    return out / f"{helm.CHART.name}-{version}.tgz"


def push(archive: Path, registry: str, *, plain_http: bool) -> None:
    """Pushes the chart; `helm install NAME oci://REGISTRY/inflight` takes it. Raises ClusterError."""
    output([helm.binary(), "push", str(archive), f"oci://{registry}", *(["--plain-http"] if plain_http else [])])


def write_manifests(archive: Path, out: Path) -> list[Path]:
    """Writes what the chart installs with default values, and with the gateway, for `kubectl apply --server-side`."""
    files = {out / "inflight.yaml": (), out / "inflight-gateway.yaml": manifest.WITH_GATEWAY}
    for path, flags in files.items():
        path.write_text(manifest.whole(archive, *flags))
    return list(files)

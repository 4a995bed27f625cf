"""The base of the images, `localhost/python-base:bookworm`: Debian with Python, for machines without a registry.

Users' Dockerfiles take a public image as BASE; a cluster that has no registry takes this. It carries what this
machine needs to install Python packages: its authorities' bundle and its package index settings. They are put into
the image on this machine and are written nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.localcluster.commands import output
from tools.localcluster.errors import ClusterError
from tools.localcluster.images import oci_archive
from tools.localcluster.images.image_store import ImageStore
from tools.localcluster.images.oci_archive import ImageConfig
from tools.localcluster.layout import Layout
from tools.localcluster.programs import packages
from tools.localcluster.progress import Progress, step

REFERENCE = "localhost/python-base:bookworm"
SUITE = "bookworm"
INCLUDED = ("python3", "python3-venv", "ca-certificates")
AUTHORITIES_IN_IMAGE = "/etc/ssl/certs/ca-certificates.crt"
_KEPT_PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries", "no-index")
_HOST_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)


def parse_pip_settings(listing: str) -> dict[str, str]:
    """Settings by name from `pip config list`; what the environment says wins over files.

    Lines read `global.index-url='...'` or `:env:.index-url='...'`.
    """
    settings: dict[str, str] = {}
    from_environment: dict[str, str] = {}
    for line in listing.splitlines():
        if found := re.match(r"^(:env:|global|install)\.([\w-]+)=(['\"])(.*)\3$", line.strip()):
            section, name, _, value = found.groups()
            (from_environment if section == ":env:" else settings)[name] = value
    return settings | from_environment


def pip_configuration(settings: Mapping[str, str]) -> str:
    """/etc/pip.conf for the image: the settings about where packages come from; no folders of this machine."""
    lines = [f"{name} = {settings[name]}" for name in _KEPT_PIP_SETTINGS if settings.get(name)]
    remote = " ".join(link for link in settings.get("find-links", "").split() if "://" in link)
    if remote:
        lines.append(f"find-links = {remote}")
    return "\n".join(["[global]", *lines, ""])


def uv_configuration(pip: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """/etc/uv/uv.toml for the image: the same index for uv, by its own variables or else by pip's settings."""
    default = environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL") or pip.get("index-url")
    extra = (
        environment.get("UV_INDEX") or environment.get("UV_EXTRA_INDEX_URL") or pip.get("extra-index-url", "")
    ).split()
    lines: list[str] = []
    for url in extra:
        lines += ["[[index]]", f"url = {json.dumps(url)}"]
    if default:
        lines += ["[[index]]", f"url = {json.dumps(default)}", "default = true"]
    return "\n".join([*lines, ""])


def authorities(environment: Mapping[str, str]) -> bytes:
    """This machine's bundle of certificate authorities (PEM): as the environment names it, else the usual file."""
    named = [environment.get(name, "") for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")]
    for candidate in (*named, *_HOST_BUNDLES):
        if candidate and Path(candidate).is_file():
            return Path(candidate).read_bytes()
    raise ClusterError("no bundle of certificate authorities was found; install ca-certificates or set SSL_CERT_FILE")


def image_configuration() -> ImageConfig:
    """Python's network programs use the bundle in the image."""
    return ImageConfig(
        command=("python3",),
        environment={
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "SSL_CERT_FILE": AUTHORITIES_IN_IMAGE,
            "PIP_CERT": AUTHORITIES_IN_IMAGE,
            "REQUESTS_CA_BUNDLE": AUTHORITIES_IN_IMAGE,
        },
    )


def ensure_root_file_system(layout: Layout, progress: Progress) -> Path:
    """The tar file of a minimal Debian with Python, made once by mmdebstrap."""
    target = layout.downloads / f"{SUITE}-{'-'.join(INCLUDED)}.tar"
    if target.exists():
        return target
    program = packages.require("mmdebstrap")
    layout.downloads.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    command = [
        program,
        "--quiet",
        "--variant=minbase",
        f"--include={','.join(INCLUDED)}",
        # Documentation, translations and package lists: no use in an image.
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        "--format=tar",
        SUITE,
        str(partial),
    ]
    with step(progress, f"making the base image's file system (Debian {SUITE} with Python)"):
        output(
            command,
            "mmdebstrap could not make the base image ({last}); "
            "check that Debian's package mirror can be reached and run this again",
        )
    partial.rename(target)
    return target


def settings_files(environment: Mapping[str, str]) -> dict[str, tuple[bytes, int]]:
    """The files on top of Debian: this machine's authorities and index settings; name -> (content, mode)."""
    listing = output([sys.executable, "-m", "pip", "config", "list"], env=environment, check=False)
    pip = parse_pip_settings(listing)
    return {
        AUTHORITIES_IN_IMAGE: (authorities(environment), 0o644),
        "/etc/pip.conf": (pip_configuration(pip).encode(), 0o644),
        "/etc/uv/uv.toml": (uv_configuration(pip, environment).encode(), 0o644),
    }


def ensure(store: ImageStore, progress: Progress) -> None:
    """Have the base image in the node's store, made from today's settings of this machine."""
    layout = store.layout
    files = settings_files(os.environ)
    stamp = hashlib.sha256(repr((SUITE, INCLUDED, image_configuration(), sorted(files.items()))).encode()).hexdigest()
    stamp_file = layout.store / "base-image.stamp"
    known = stamp_file.exists() and stamp_file.read_text() == stamp
    if known and REFERENCE in store.image_names():
        return
    root_file_system = ensure_root_file_system(layout, progress)
    layer, archive = layout.downloads / "base-settings.layer.tar", layout.downloads / "base-image.tar"
    oci_archive.layer_of_files(layer, files)
    with step(progress, f"importing {REFERENCE}"):
        oci_archive.write(archive, REFERENCE, [root_file_system, layer], image_configuration())
        store.import_archive(archive)
    layer.unlink()
    archive.unlink()
    stamp_file.write_text(stamp)

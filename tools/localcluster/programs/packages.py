"""Programs that come from the distribution: found on PATH, else installed with apt-get."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tools.localcluster import machine
from tools.localcluster.commands import last_line
from tools.localcluster.errors import ClusterError
from tools.localcluster.progress import Progress, step

NEEDED: Mapping[str, str] = {
    "runc": "runc",
    "nft": "nftables",
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}
"""Required programs and files, by name or by path -> the package that has it."""

SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
"""Debian keeps administration programs in folders that are not on every user's PATH."""


def missing_packages(is_there: Mapping[str, bool], needed: Mapping[str, str] = NEEDED) -> list[str]:
    """Packages to install, from which of `needed` are there."""
    return sorted(needed[name] for name, there in is_there.items() if not there)


def ensure(progress: Progress, needed: Mapping[str, str] = NEEDED) -> None:
    """Install what is missing of `needed`: names or paths, and the packages that have them.

    Raises:
        ClusterError: that cannot be done from here; the message has the list.
    """
    missing = missing_packages(
        {name: Path("/", name).exists() if name.startswith("/") else find(name) is not None for name in needed}, needed
    )
    if not missing:
        return
    names = " ".join(missing)
    if not machine.is_root() or not shutil.which("apt-get"):
        raise ClusterError(f"these packages are missing: {names}; install them with your system's package manager")
    with step(progress, f"installing packages: {names}"):
        install = ["install", "-y", "--no-install-recommends", *missing]
        # A package list that is there and good saves the seconds of fetching a new one.
        attempts = (install, ["update"], install)
        for attempt in attempts:
            done = subprocess.run(
                # A machine that has just been set up may still be installing its own updates.
                ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=120", *attempt],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0 and attempt is install:
                return
        raise ClusterError(f"apt-get could not install {names} ({last_line(done.stderr)}); install them by hand")


def find(program: str) -> str | None:
    """Path of `program`, or None."""
    return shutil.which(program, path=SEARCH_PATH)


def require(program: str) -> str:
    """Path of `program`; raises ClusterError where it is missing."""
    path = find(program)
    if not path:
        package = NEEDED.get(program, program)
        raise ClusterError(f"the program {program} is missing: install the package {package}")
    return path

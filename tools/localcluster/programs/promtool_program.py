"""Prometheus' programs: those on PATH, else Debian's, ready made in seconds; promtool else built from its module."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.localcluster.errors import ClusterError
from tools.localcluster.layout import Layout
from tools.localcluster.locking import exclusive
from tools.localcluster.programs import gobuild, goparts
from tools.localcluster.progress import Progress, step

PACKAGE = "prometheus"


def ensure(layout: Layout, progress: Progress) -> Path:
    """Path of promtool."""
    if found := _ready_made("promtool", layout, progress):
        return found
    folder = gobuild.ensure_part(goparts.PROMTOOL, layout, progress)
    gobuild.drop_caches(layout, progress)
    return folder / "promtool"


def ensure_server(layout: Layout, progress: Progress) -> Path:
    """Path of the server, `prometheus`.

    Raises:
        ClusterError: it is not on PATH, and the distribution does not give it.
    """
    if found := _ready_made("prometheus", layout, progress):
        return found
    raise ClusterError(f"the program prometheus is missing: install {PACKAGE}, or put it on PATH")


def _ready_made(name: str, layout: Layout, progress: Progress) -> Path | None:
    """Path of a program on PATH or of the distribution; None where there is neither."""
    if on_path := shutil.which(name):
        return Path(on_path)
    unpacked = layout.bin / f"{name}-debian" / name
    with exclusive(layout.locks / name, f"getting {name}", progress):
        return unpacked if unpacked.exists() or _from_debian(unpacked, progress) else None


def _from_debian(target: Path, progress: Progress) -> bool:
    """Take the program out of the distribution's package, which is not installed: it would start a server.

    False where there is no apt, or it cannot get the package.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return False
    with step(progress, f"{target.name} from the package {PACKAGE}"), tempfile.TemporaryDirectory() as folder:
        archives = _download(Path(folder))
        if not archives:
            return False
        subprocess.run(["dpkg-deb", "-x", str(archives[0]), f"{folder}/unpacked"], check=True)
        program = Path(folder, "unpacked", "usr", "bin", target.name)
        if not program.exists():
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.partial")
        shutil.copy2(program, partial)
        partial.rename(target)
    return True


def _download(folder: Path) -> list[Path]:
    """The package's archive; the package lists are brought up to date where the present ones do not give it."""
    download = ["apt-get", "-q", "download", PACKAGE]
    if subprocess.run(download, cwd=folder, capture_output=True, check=False).returncode:
        subprocess.run(["apt-get", "-q", "update"], capture_output=True, check=False)
        subprocess.run(download, cwd=folder, capture_output=True, check=False)
    return list(folder.glob("*.deb"))

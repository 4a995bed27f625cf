"""The npm part: packages installed, page bundled, dashboards type-checked. Each only when something changed."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dashboards.typecheck import problems
from e2e.cluster import ClusterError, packages
from e2e.cluster.files import write_whole
from e2e.cluster.progress import Progress, step

FOLDER = Path(__file__).parent
MODULES = FOLDER / "node_modules"
PAGE = FOLDER / "build"
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
_LINES_SHOWN = 15


def browser(progress: Progress) -> str:
    """Path of a Chromium, installed where there is none. Raises ClusterError."""
    if not any(map(packages.find, BROWSERS)):
        packages.ensure(progress, {BROWSERS[0]: BROWSERS[0]})
    return next(path for path in map(packages.find, BROWSERS) if path)


def prepare(progress: Progress) -> None:
    """Install the packages of package-lock.json and bundle the page. Raises ClusterError."""
    packages.ensure(progress, {"node": "nodejs", "npm": "npm"})
    lock, sources = FOLDER / "package-lock.json", sorted((FOLDER / "src").iterdir())
    # Grafana's packages name peers that this page does not use, in ranges that npm cannot satisfy together.
    install = ("ci", "--ignore-scripts", "--legacy-peer-deps", "--no-audit", "--no-fund", "--no-update-notifier")
    with _unless_done(MODULES / ".installed", [lock]) as todo:
        if todo:
            with step(progress, "installing Grafana's front-end libraries (npm, 770 MB, about a minute)"):
                _npm(*install)
    with _unless_done(PAGE / ".built", [lock, FOLDER / "build.mjs", FOLDER / "index.html", *sources]) as todo:
        if todo:
            with step(progress, "bundling the page"):
                _npm("run", "--silent", "build")


def check_types(dashboards: Mapping[str, Mapping[str, Any]]) -> None:
    """Compile the dashboards against @grafana/schema.

    Raises:
        ClusterError: a key or a word is not Grafana's; the message has the compiler's lines.
    """
    if said := problems(dashboards):
        raise ClusterError(f"the dashboards are not of Grafana's types:\n{_shown(said)}")


@contextmanager
def _unless_done(stamp: Path, files: Sequence[Path]) -> Iterator[bool]:
    """True where `stamp` was written for other contents of `files`; writes it when the block succeeds."""
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
    yield not stamp.exists() or stamp.read_text() != digest
    write_whole(stamp, digest)


def _npm(*arguments: str) -> None:
    npm = packages.require("npm")
    done = subprocess.run(
        [npm, *arguments],
        cwd=FOLDER,
        env={**os.environ, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ClusterError(f"`npm {' '.join(arguments)}` failed in {FOLDER}:\n{_shown(done.stdout + done.stderr)}")


def _shown(said: str) -> str:
    return "\n".join(f"  {line[:300]}" for line in said.strip().splitlines()[:_LINES_SHOWN])

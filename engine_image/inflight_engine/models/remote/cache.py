"""A folder of models that engines share, on a node or through a network: bounded, and locked.

Each entry is a folder with the file `use`: its content is the bytes that the entry may have, its time is that of the
last use, and who reads or fills the entry holds a shared lock on it. Entries are made and removed under one lock of the
whole folder. The kernel gives the locks of a dead process up.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_ENTRIES = "inflight-models"
"""Folder in the folder: what else is there is not ours to remove."""
_USE = "use"
_REMOVED = ".removed-"
_LOCK_SECONDS = 30.0
"""Time to wait for the lock of the folder, which others hold while they remove files."""
_FIRST_WAIT_SECONDS = 0.002
_LONGEST_WAIT_SECONDS = 0.1


log = logging.getLogger(__name__)

_problems: list[str] = []


def warn(source: str, sentence: str) -> None:
    """Log that a model is read from its source, and keep the sentence for `first_problem`."""
    log.warning("model %s: %s", source, sentence)
    _problems.append(sentence)


def first_problem() -> str:
    """Return why this process read from a source what the cache should have; empty: it did not. At most 300 characters
    of it, which the operator reads."""
    return next(iter(_problems), "")[:300]


class CacheError(Exception):
    """The cache cannot be used for a model. The message is one sentence."""


class NoRoomError(CacheError):
    """The cache has no room for this entry; others may be used."""


def is_full(error: Exception) -> bool:
    """Return whether an error is that of a full disk. Those of the hub's part hf_xet have no number, but its text."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in full or any(os.strerror(number) in str(error) for number in full)


class Entry:
    """The folder of an entry, which stays while this object does."""

    def __init__(self, path: Path, use: int) -> None:
        self.path = path
        self._release = weakref.finalize(self, os.close, use)

    def open(self, name: str) -> int:
        """Open a file of the entry for reading and writing; it is made if it is not there. Returns the descriptor."""
        return open_file(self.path / name)


@dataclass(frozen=True, slots=True)
class ModelCache:
    """The folder.

    Attributes:
        size: most bytes of all entries together.
    """

    folder: Path
    size: int

    def hold(self, key: str, num_bytes: int) -> Entry:
        """Find an entry or make it, and keep it from being removed.

        Args:
            key: name of a folder, which depends on the content.
            num_bytes: most bytes that the entry will have.

        Raises:
            NoRoomError: there is no room.
            CacheError: the folder cannot be used.
        """
        path = self._entries / key
        with self._locked():
            if _reserved(path) is None:
                self._make_room(num_bytes)
                path.mkdir()
                (path / _USE).write_text(str(num_bytes))
            return _kept(path)

    def find(self, key: str) -> Entry | None:
        """Find an entry that is there already, and keep it from being removed. Raises CacheError as `hold`."""
        path = self._entries / key
        with self._locked():
            return None if _reserved(path) is None else _kept(path)

    @property
    def _entries(self) -> Path:
        return self.folder / _ENTRIES

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the folder. An error of the system in there is a CacheError."""
        try:
            if self._entries.is_symlink():  # what is in it would be removed
                raise OSError(f"{_ENTRIES} is a link")
            self._entries.mkdir(parents=True, exist_ok=True)
            lock = open_file(self._entries / ".lock")
            try:
                if not wait_for(lambda: _try_flock(lock, fcntl.LOCK_EX), _LOCK_SECONDS):
                    raise CacheError(f"the model cache {self.folder} is locked by another process for too long")
                yield
            finally:
                os.close(lock)
        except OSError as error:
            raise CacheError(f"the model cache {self.folder} cannot be used: {error.strerror or error}") from error

    def _make_room(self, num_bytes: int) -> None:
        """Remove the entries that nobody holds, least recently used first, until there are `num_bytes`."""
        sizes = {}
        for path in self._entries.iterdir():
            if path.name.startswith(_REMOVED):
                _delete(path)
            elif (size := _reserved(path)) is not None:
                sizes[path] = size
            elif not path.name.startswith("."):
                _remove(path)  # a link, or the process that made it was killed before it wrote the size
        missing = sum(sizes.values()) + num_bytes - self.size
        with ExitStack() as locks:
            unused = []
            for path in sorted(sizes, key=lambda each: (each / _USE).stat().st_mtime_ns):
                if missing <= 0 or num_bytes > self.size:
                    break
                use = open_file(path / _USE)
                locks.callback(os.close, use)
                if _try_flock(use, fcntl.LOCK_EX):
                    unused.append(path)
                    missing -= sizes[path]
            if missing > 0:
                raise NoRoomError(
                    f"the model cache {self.folder} has no room for {num_bytes / 1e9:.2f} GB: it may have "
                    f"{self.size / 1e9:.2f} GB, and entries that are read are not removed"
                )
            for path in unused:
                _remove(path)


def open_file(path: Path) -> int:
    """Open a file for reading and writing; it is made if it is not there, and a link is refused."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o660)


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Ask until the condition holds, at most for so long. Returns whether it does."""
    until, wait = time.monotonic() + seconds, _FIRST_WAIT_SECONDS
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
    return True


def _kept(path: Path) -> Entry:
    """Return an entry that is there: it is in use now, and stays."""
    use = open_file(path / _USE)
    entry = Entry(path, use)
    os.utime(use)
    fcntl.flock(use, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return entry


def _reserved(path: Path) -> int | None:
    """Return the bytes that an entry may have; None: it is none (as a link), or was not finished."""
    if path.is_symlink():
        return None
    try:
        return int((path / _USE).read_text())
    except (OSError, ValueError):
        return None


def _remove(path: Path) -> None:
    """Remove an entry. It is none at once: a process that is killed leaves no half of it."""
    gone = path.with_name(f"{_REMOVED}{path.name}")
    _delete(gone)
    path.rename(gone)
    _delete(gone)


def _delete(path: Path) -> None:
    """Remove a folder with all in it, or the link or file that is in its place, as far as that is allowed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _try_flock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

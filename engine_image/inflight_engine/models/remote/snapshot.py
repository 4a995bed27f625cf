"""Fixes the version of a remote model: all processes of a server read the same, or fail.

The first process that looks writes down which files there are, with sizes and etags, and keeps the small ones in a
folder of this server; the others find it there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from inflight_engine.models.checkpoints.source import ModelSourceError
from inflight_engine.models.remote.cache import ModelCache
from inflight_engine.models.remote.cached import CachedStore
from inflight_engine.models.remote.peers import Peers
from inflight_engine.models.remote.stores import (
    CONNECTIONS,
    INDEX,
    SINGLE,
    RemoteFile,
    Store,
    is_small,
    shards_of,
)

FOLDER_VARIABLE = "INFLIGHT_MODEL_FILES"
"""Variable of the environment with the folder that the processes of one server share."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a model in one version.

    Attributes:
        folder: the small files.
        files: all that the model needs.
        shards: those with weights, in the order of their names.
    """

    store: Store
    folder: Path
    files: tuple[RemoteFile, ...]

    @property
    def shards(self) -> tuple[RemoteFile, ...]:
        return tuple(file for file in self.files if not is_small(file.name))


def take_snapshot(source: str, cache: ModelCache | None = None, peers: Peers | None = None) -> Snapshot:
    """Find the model's files, or what another process of this server found.

    Args:
        cache: weights are read through it.
        peers: engines that are asked for what the cache lacks.

    Raises:
        ModelSourceError: there is no usable model, or the store cannot be read.
    """
    store = Store(source) if cache is None else CachedStore(source, cache, peers)
    try:
        with shared_folder(source) as folder:
            listing = folder / ".files"
            if not listing.is_file():
                files = _fetch(store, folder)
                write(listing, json.dumps([asdict(file) for file in files]).encode())
    except OSError as error:
        raise ModelSourceError(
            f"model source {source}: its settings and its tokenizer cannot be kept in "
            f"{os.environ.get(FOLDER_VARIABLE, 'a temporary folder')} ({error.strerror or error}): make room there, or "
            "set TMPDIR to a folder that can be written"
        ) from error
    files = [RemoteFile(**each) for each in json.loads(listing.read_bytes())]
    return Snapshot(store, folder, tuple(files))


@contextmanager
def shared_folder(source: str) -> Iterator[Path]:
    """Lock a source's folder, which the processes of this server share. Outside of one, it is of this process."""
    if FOLDER_VARIABLE not in os.environ:
        os.environ[FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="inflight-model-")
    folder = Path(os.environ[FOLDER_VARIABLE]) / hashlib.sha256(source.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def write(path: Path, content: bytes) -> None:
    """Write the whole file or none: a process may be killed."""
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)


def digest(files: Sequence[RemoteFile]) -> str:
    """Return a name for the content of files, by their names, sizes and etags."""
    text = json.dumps(sorted([file.name, file.size, file.etag] for file in files))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _fetch(store: Store, folder: Path) -> list[RemoteFile]:
    """Write the small files into the folder. Returns all that are needed."""
    files = store.files()
    if "config.json" not in files:
        raise ModelSourceError(
            f"model source {store.source} has no config.json; give the folder that holds config.json, tokenizer.json "
            "and the *.safetensors files"
        )
    small = [file for file in files.values() if is_small(file.name)]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        contents = dict(zip((file.name for file in small), pool.map(store.small, small), strict=True))
    names = [SINGLE]
    if INDEX in contents:
        names = shards_of(store.source, contents[INDEX])
        store.add_shards(files, contents[INDEX])
    if missing := [name for name in names if name not in files]:
        raise ModelSourceError(
            f"model source {store.source} has no {missing[0]}"
            + (f", which {INDEX} names" if INDEX in contents else f" and no {INDEX}: weights must be safetensors")
        )
    for name, content in contents.items():
        write(folder / name, content)
    shards = [files[name] for name in names]
    needed = [*small, *shards]
    log.info(
        "model %s: %d files, %.2f GB of weights, digest %s",
        store.source,
        len(needed),
        sum(shard.size for shard in shards) / 1e9,
        digest(needed),
    )
    return needed

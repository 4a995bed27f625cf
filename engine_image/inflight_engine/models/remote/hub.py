"""Downloads models of the Hugging Face hub, also into a model cache.

An entry is a cache folder of the hub's own library with one commit of one model: the library names files by their
content, locks what it downloads, and goes on with what a killed process left.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight_engine.models.remote.cache import CacheError, Entry, is_full, warn

if TYPE_CHECKING:
    from inflight_engine.models.remote.cache import ModelCache

HUB_FILES = ["*.json", "*.jinja", "*.safetensors"]
"""Configuration, tokenizer and weights; repositories often carry the same weights in other formats beside."""

_MARGIN = 1 << 20
"""Bytes for the library's own notes about files."""

_COMMIT = re.compile(r"[0-9a-f]{40}\Z")

_held: dict[str, Entry] = {}
"""Entries that this process uses until it ends: it maps their files."""


def download(name: str, revision: str, cache: ModelCache | None) -> Path:
    """Download what is not in the cache. Returns the folder with the files. Raises what `snapshot_download` raises."""
    from huggingface_hub import snapshot_download

    if cache is not None:
        try:
            revision, num_bytes = _found(name, revision)
            folder = _entry(name, revision, num_bytes, cache).path / "hub"
            # Asks the hub for nothing when the files of the commit are all there.
            return Path(snapshot_download(name, revision=revision, allow_patterns=HUB_FILES, cache_dir=folder))
        except CacheError as error:
            warn(name, f"it is downloaded for this server alone: {error}")
        except (OSError, RuntimeError) as error:
            if not is_full(error):
                raise
            warn(name, "it is downloaded for this server alone: the disk of the model cache is full")
    return Path(snapshot_download(name, revision=revision, allow_patterns=HUB_FILES))


def _found(name: str, revision: str) -> tuple[str, int | None]:
    """Return the commit of a revision, which the first process of this server found, and its bytes if they are known.

    All processes read this commit, and those that start later need no hub.
    """
    from inflight_engine.models.remote.snapshot import shared_folder, write

    if _COMMIT.match(revision):
        return revision, None
    with shared_folder(f"hf://{name}@{revision}") as folder:
        note = folder / ".commit"
        if not note.is_file():
            write(note, json.dumps(_ask(name, revision)).encode())
        commit, num_bytes = json.loads(note.read_bytes())
        return commit, num_bytes


def _entry(name: str, commit: str, num_bytes: int | None, cache: ModelCache) -> Entry:
    key = _key(name, commit)
    if key not in _held:
        entry = cache.find(key)
        if entry is None:
            entry = cache.hold(key, _ask(name, commit)[1] if num_bytes is None else num_bytes)
        _held[key] = entry
    return _held[key]


def _ask(name: str, revision: str) -> tuple[str, int]:
    """Ask the hub for the commit of a revision. Returns it and the most bytes of its entry."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError, HfHubHTTPError

    try:
        files: Any = snapshot_download(name, revision=revision, allow_patterns=HUB_FILES, dry_run=True)
    except DryRunError as error:
        if isinstance(error.__cause__, HfHubHTTPError):  # says what is wrong; others are no OSError
            raise error.__cause__ from None
        raise
    if not files:
        raise CacheError("the hub has none of its files")
    return files[0].commit_hash, sum(file.file_size or 0 for file in files) + _MARGIN


def _key(name: str, commit: str) -> str:
    from huggingface_hub import constants

    return hashlib.sha256(f"{constants.ENDPOINT}\0{name}\0{commit}".encode()).hexdigest()

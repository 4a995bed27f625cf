"""Downloads models of the Hugging Face hub, also into a model cache.

An entry is a cache folder of the hub's own library with one commit of one model: the library names files by their
content, locks what it downloads, and goes on with what a killed process left.
"""

from __future__ import annotations

import errno
import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from inflight_engine.models.remote.cache import CacheError, Entry

if TYPE_CHECKING:
    from inflight_engine.models.remote.cache import ModelCache

HUB_FILES = ["*.json", "*.jinja", "*.safetensors"]
"""Configuration, tokenizer and weights; repositories often carry the same weights in other formats beside."""

_MARGIN = 1 << 20
"""Bytes for the library's own notes about files."""

_held: dict[str, Entry] = {}
"""Entries that this process uses until it ends: it maps their files."""

log = logging.getLogger(__name__)


def download(name: str, revision: str, cache: ModelCache | None) -> Path:
    """Download what is not in the cache. Returns the folder with the files. Raises what `snapshot_download` raises."""
    from huggingface_hub import snapshot_download

    if cache is not None:
        try:
            commit, entry = _entry(name, revision, cache)
            return Path(
                snapshot_download(name, revision=commit, allow_patterns=HUB_FILES, cache_dir=entry.path / "hub")
            )
        except CacheError as error:
            log.warning("model %s is downloaded for this server alone: %s", name, error)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            log.warning("model %s is downloaded for this server alone: the disk of the model cache is full", name)
    return Path(snapshot_download(name, revision=revision, allow_patterns=HUB_FILES))


def _entry(name: str, revision: str, cache: ModelCache) -> tuple[str, Entry]:
    from huggingface_hub import constants, snapshot_download

    files = snapshot_download(name, revision=revision, allow_patterns=HUB_FILES, dry_run=True)
    if not files:
        raise CacheError("the hub has none of its files")
    commit = files[0].commit_hash
    key = hashlib.sha256(f"{constants.ENDPOINT}\0{name}\0{commit}".encode()).hexdigest()
    if key not in _held:
        _held[key] = cache.hold(key, sum(file.file_size or 0 for file in files) + _MARGIN)
    return commit, _held[key]

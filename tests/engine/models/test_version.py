"""The version of a model: equal for equal files, and compared with that of the first pod of a rollout."""

import json
import os
import time

import pytest

from inflight_engine.models.checkpoints.source import ModelFiles, ModelSourceError
from inflight_engine.models.version import Rollout, digest_of
from tests.engine.models.remote.store_server import store_server

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FIRST, SECOND = "sha256:" + "1" * 64, "sha256:" + "2" * 64


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "README.md"):
        (path / name).write_text(name)
    return path


@pytest.fixture
def pinned(monkeypatch, tmp_path):
    """Writes what the pods of the rollout `chat-abc` are told."""
    path = tmp_path / "digests.json"
    monkeypatch.setattr("socket.gethostname", lambda: "chat-abc-x7k2p")
    return lambda digests: path.write_text(json.dumps(digests))


@pytest.fixture
def rollout(pinned, tmp_path):
    return Rollout(tmp_path / "limits.json")


def test_a_file_that_is_replaced_changes_the_digest_of_a_folder(folder):
    before = digest_of(ModelFiles("pvc", folder))
    assert digest_of(ModelFiles("another name", folder)) == before
    (folder / "README.md").write_text("more words")
    assert digest_of(ModelFiles("pvc", folder)) == before
    os.utime(folder / "model.safetensors", (time.time(), time.time() + 60))
    assert digest_of(ModelFiles("pvc", folder)) != before


def test_the_version_of_a_hub_model_is_its_commit(tmp_path):
    assert digest_of(ModelFiles("hf://a/b", tmp_path / "snapshots" / COMMIT)) == f"commit:{COMMIT}"


def test_a_builtin_model_in_an_image_that_is_made_anew_is_the_same(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    before = digest_of(ModelFiles("builtin://x", tmp_path, path))
    os.utime(path, (0, 0))
    assert digest_of(ModelFiles("builtin://x", tmp_path, path)) == before


def test_any_file_of_a_stored_model_changes_its_digest(monkeypatch, tmp_path):
    from inflight_engine.models.checkpoints.source import resolve
    from inflight_engine.models.remote.snapshot import FOLDER_VARIABLE

    with store_server() as store:
        found = []
        for name in (None, "config.json", "model.safetensors", "README.md"):
            store.files |= {f"tiny/{each}": b"{}" for each in ("config.json", "model.safetensors", "README.md")}
            if name is not None:
                store.files[f"tiny/{name}"] = b"[]"
            monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / str(name)))
            found.append(digest_of(resolve(f"{store.url}/tiny")))
    assert len(set(found)) == 3
    assert found[3] == found[0]


def test_the_first_pod_of_a_rollout_is_free_and_later_ones_must_find_the_same(pinned, rollout):
    assert rollout.agrees("s3://b/m", FIRST) is False
    pinned({"chat-old": SECOND})
    assert rollout.agrees("s3://b/m", FIRST) is False
    pinned({"chat-old": SECOND, "chat-abc": FIRST})
    assert rollout.agrees("s3://b/m", FIRST) is True
    with pytest.raises(ModelSourceError, match=f"s3://b/m has changed: it is {SECOND} now.* has {FIRST}.*rollout rest"):
        rollout.agrees("s3://b/m", SECOND)


def test_a_name_that_kubernetes_has_cut_is_that_of_one_rollout(pinned, monkeypatch, tmp_path):
    from inflight_operator.observe.pods import pod_view

    base = f"{'a' * 50}-7d9fbc6d55-"[:58]
    monkeypatch.setattr("socket.gethostname", lambda: f"{base}abcde")
    pinned({pod_view({"metadata": {"name": f"{base}fghij"}}).rollout: FIRST})
    assert Rollout(tmp_path / "limits.json").digest == FIRST


def test_without_a_file_nothing_is_compared(pinned):
    pinned({"chat-abc": FIRST})
    assert Rollout(None).agrees("s3://b/m", SECOND) is False


@pytest.mark.parametrize(
    "content", ["", "[]", '{"chat-abc": 1}', '{"chat-abc": "latest"}', '{"chat-abc": "sha256:12"}', "\udcff"]
)
def test_a_damaged_file_keeps_no_pod_from_starting(rollout, tmp_path, content):
    (tmp_path / "digests.json").write_bytes(content.encode(errors="surrogateescape"))
    assert rollout.agrees("s3://b/m", FIRST) is False


def test_later_pods_take_the_commit_that_the_first_took(pinned, rollout, tmp_path):
    from inflight_engine.cli import _at_agreed_commit
    from tests.engine.server.fake_engine import server_config

    config = server_config(limits_file=tmp_path / "limits.json")
    assert _at_agreed_commit(config) == config
    pinned({"chat-abc": FIRST})
    assert rollout.commit is None
    pinned({"chat-abc": f"commit:{COMMIT}"})
    assert _at_agreed_commit(config).engine.revision == COMMIT

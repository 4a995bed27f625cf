"""The key of a store, and what it depends on."""

from types import SimpleNamespace

import pytest

from inflight_engine.disk import opening
from inflight_engine.models.checkpoints.source import ModelFiles
from inflight_engine.models.remote.snapshot import Snapshot
from inflight_engine.models.remote.stores import RemoteFile
from inflight_settings.engine import EngineConfig

INFO = SimpleNamespace(device="cpu", dtype="float32", attention_backend="cpu", block_size=16, kv_bytes_per_token=1)


@pytest.fixture
def identity(tmp_path, monkeypatch):
    """Returns the identity of a model in a store whose weights have this ETag."""

    def of(etag):
        snapshot = Snapshot(None, tmp_path, (RemoteFile("model.safetensors", 1, etag),))
        files = ModelFiles("s3://models/a", tmp_path, remote=snapshot)
        monkeypatch.setattr(opening, "resolve_configured", lambda config: files)
        return opening._identity(EngineConfig(model="s3://models/a"), INFO)

    return of


def test_other_weights_in_a_store_have_another_key(identity):
    assert identity('"one"') == identity('"one"')
    assert identity('"one"') != identity('"two"')


def test_weights_of_which_nobody_knows_the_version_have_none(identity):
    with pytest.raises(ValueError, match="no ETags"):
        identity(None)

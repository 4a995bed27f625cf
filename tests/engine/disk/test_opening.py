"""The key of a store, and what it depends on."""

import pytest

from inflight_engine.disk import opening
from inflight_engine.models.checkpoints.source import ModelFiles
from inflight_engine.models.remote.snapshot import Snapshot
from inflight_engine.models.remote.stores import RemoteFile
from inflight_settings.engine import EngineConfig


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """Returns the digest of the weights of a model in a store whose weights have this ETag."""

    def of(etag):
        snapshot = Snapshot(None, tmp_path, (RemoteFile("model.safetensors", 1, etag),))
        files = ModelFiles("s3://models/a", tmp_path, remote=snapshot)
        monkeypatch.setattr(opening, "resolve_configured", lambda config: files)
        return opening._digest_of_weights(EngineConfig(model="s3://models/a"))

    return of


def test_other_weights_in_a_store_have_another_key(digest):
    assert digest('"one"') == digest('"one"')
    assert digest('"one"') != digest('"two"')


def test_weights_of_which_nobody_knows_the_version_have_none(digest):
    with pytest.raises(ValueError, match="no ETags"):
        digest(None)

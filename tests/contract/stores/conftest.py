"""A small model, and an engine's process that knows of no store yet."""

import os

import pytest

from inflight_engine.models.remote.snapshot import FOLDER_VARIABLE
from tools.bench.delivery.checkpoint import TINY, write_checkpoint


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    write_checkpoint(path, TINY)
    return path


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Sets the variables that the engine's process gets; none of this machine's are left."""
    for prefix in ("AWS_", "AZURE_", "GOOGLE_", "INFLIGHT_"):
        for name in [name for name in os.environ if name.startswith(prefix)]:
            monkeypatch.delenv(name)
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "files"))

    def fresh(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return fresh

import pytest

from inflight_engine.models.remote import cache, snapshot, stores
from tests.engine.models.remote.store_server import store_server


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A store that answers under every scheme of `SCHEMES`, and a new server of ours for each test."""
    with store_server() as store:
        monkeypatch.setenv(snapshot.FOLDER_VARIABLE, str(tmp_path / "files"))
        for name, value in {
            "AWS_ACCESS_KEY_ID": "ours",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "GOOGLE_SKIP_SIGNATURE": "true",
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_SKIP_SIGNATURE": "true",
            "no_proxy": "127.0.0.1",
            "NO_PROXY": "127.0.0.1",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(stores, "_FIRST_WAIT_SECONDS", 0.001)
        monkeypatch.setattr(cache, "_problems", [])
        yield store


@pytest.fixture
def source(server, monkeypatch):
    """The URL of a folder in the store by scheme."""

    def url(scheme, folder):
        if scheme == "http":
            return f"{server.url}/{folder}"
        monkeypatch.setenv("INFLIGHT_MODEL_ENDPOINT", server.url + ("/account" if scheme == "az" else ""))
        return f"{scheme}://{server.bucket}/{folder}"

    return url

"""The store of the delivery benchmark, and the checkpoint that it serves."""

import threading
import urllib.request

import pytest

from inflight_engine.models.checkpoints.source import ModelSourceError, resolve
from inflight_engine.models.remote.snapshot import FOLDER_VARIABLE
from inflight_engine.models.remote.tensors import read_tensors
from tools.bench.delivery import store
from tools.bench.delivery.checkpoint import TINY, write_checkpoint


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Serves a small checkpoint; returns its folder, the URL and the bytes of its weights."""
    folder = tmp_path / "model"
    folder.mkdir()
    size = write_checkpoint(folder, TINY)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "files"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with store.make_server(folder, 0, 0.0) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}/model", size
        server.shutdown()


def test_the_store_serves_ranges_of_a_checkpoint_that_the_engine_reads(served):
    folder, url, size = served
    snapshot = resolve(url).remote
    tensors = read_tensors(snapshot)
    assert sum(tensor.end - tensor.start for tensor in tensors.values()) == size
    last = snapshot.shards[-1]
    content = (folder / last.name).read_bytes()
    assert bytes(snapshot.store.read(last, 7, len(content))) == content[7:]
    with urllib.request.urlopen(url.replace("/model", "/sent")) as answer:
        assert int(answer.read()) > len(content) - 7


def test_the_store_is_read_as_s3_with_its_key(served, monkeypatch, tmp_path):
    folder, _, size = served
    with store.make_server(folder, 0, 0.0, key="ours") as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setenv("INFLIGHT_MODEL_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
        with pytest.raises(ModelSourceError, match=r"refuses its files \(403\)"):
            resolve("s3://models/tiny")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ours")
        assert sum(shard.size for shard in resolve("s3://models/tiny").remote.shards) > size
        server.shutdown()


def test_a_folder_without_a_model_is_refused(served):
    folder, url, _ = served
    (folder / "config.json").unlink()
    with pytest.raises(ModelSourceError, match=r"has no config\.json"):
        resolve(url)


def test_all_connections_share_the_link(monkeypatch):
    now, slept = [100.0], []
    monkeypatch.setattr(store.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(store.time, "sleep", slept.append)
    link = store.Link(10.0)
    link.carry(5)
    link.carry(5)
    now[0] += 3.0  # idle for two seconds: what was not used is lost
    link.carry(10)
    store.Link(0.0).carry(10**12)
    assert slept == [0.5, 1.0, 1.0]

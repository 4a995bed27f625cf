"""A cache that is filled before the first engine: all of the model, or a reason."""

import pytest

from inflight_engine.cli import main
from inflight_engine.models.remote import cached, prefetch
from inflight_engine.models.remote.cache import ModelCache
from inflight_engine.models.remote.snapshot import take_snapshot

BLOCK = 16 << 10


@pytest.fixture
def model(server, monkeypatch):
    monkeypatch.setattr(cached, "PIECE", BLOCK)
    monkeypatch.setattr(prefetch, "PIECE", BLOCK)
    monkeypatch.setattr(cached, "PAGE", BLOCK // 8)
    index = b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
    server.files = {
        "tiny/config.json": b"{}",
        "tiny/model.safetensors.index.json": index,
        "tiny/model-1.safetensors": bytes(range(256)) * 300,
        "tiny/model-2.safetensors": b"x" * (2 * BLOCK),
    }
    return server


def run(url, folder, size="1Gi"):
    return main(["prefetch", url, "--model-cache", str(folder), "--model-cache-size", size])


def test_an_engine_reads_no_weights_from_the_source_afterwards(model, source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(prefetch, "_SECONDS", 0.0)
    url = source("s3", "tiny")
    assert run(url, tmp_path / "cache") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [f"{url}: 0.00 of 0.00 GB", f"{url}: 0.00 GB are in the model cache"]
    monkeypatch.setenv("INFLIGHT_MODEL_FILES", str(tmp_path / "files"))
    snapshot = take_snapshot(url, ModelCache(tmp_path / "cache", 1 << 30))
    model.num_bytes = 0
    for shard in snapshot.shards:
        assert bytes(snapshot.store.read(shard, 0, shard.size)) == model.files[f"tiny/{shard.name}"]
    assert model.num_bytes == 0


def test_a_second_run_reads_nothing_but_the_settings(model, source, tmp_path):
    url = source("s3", "tiny")
    assert run(url, tmp_path / "cache") == 0
    before = {path: model.requests["GET", path] for path in model.files if path.endswith(".safetensors")}
    assert run(url, tmp_path / "cache") == 0
    assert before == {path: model.requests["GET", path] for path in before}


def test_a_model_without_room_is_a_reason(model, source, tmp_path, capsys):
    assert run(source("s3", "tiny"), tmp_path / "cache", size="50k") == 1
    assert "is not in the model cache: model-1.safetensors is read from the source: the" in capsys.readouterr().err


def test_errors_of_the_source_are_its_sentences(model, source, tmp_path, capsys):
    assert run(source("s3", "nothing"), tmp_path / "cache") == 1
    assert "has no config.json" in capsys.readouterr().err


def test_other_sources_are_refused(tmp_path, capsys):
    assert run("builtin://smollm2", tmp_path / "cache") == 1
    assert "only models of stores and of the hub are kept there" in capsys.readouterr().err

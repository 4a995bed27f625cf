"""A cache that is filled before the first engine: all of the model, or a reason."""

import pytest

from inflight_contract.prefetch import read_report
from inflight_engine.cli import main
from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.remote import cached, prefetch
from inflight_engine.models.remote.cache import ModelCache
from inflight_engine.models.remote.snapshot import take_snapshot
from inflight_engine.models.version import digest_of

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


def test_a_report_has_the_bytes_and_the_version_that_engines_report(model, source, tmp_path):
    url, report = source("s3", "tiny"), tmp_path / "report"
    assert (
        main(["prefetch", url, "--model-cache", str(tmp_path / "c"), "--model-cache-size=1Gi", f"--report={report}"])
        == 0
    )
    found = read_report(report.read_text())
    assert found.num_bytes == 256 * 300 + 2 * BLOCK
    assert found.digest == digest_of(resolve(url))


def test_a_folder_of_this_machine_needs_no_cache(tmp_path, capsys):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x" * 1000)
    assert main(["prefetch", str(folder), f"--report={tmp_path / 'report'}"]) == 0
    found = read_report((tmp_path / "report").read_text())
    assert (found.num_bytes, found.digest) == (1000, digest_of(resolve(str(folder))))
    assert main(["prefetch", str(tmp_path / "missing"), f"--report={tmp_path / 'other'}"]) == 1
    assert "is not a folder on this machine; check the path or the mount" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_model_of_a_store_needs_a_cache(capsys):
    assert main(["prefetch", "s3://models/tiny"]) == 1
    assert "give --model-cache and --model-cache-size" in capsys.readouterr().err


def test_other_sources_are_refused(tmp_path, capsys):
    assert run("builtin://smollm2", tmp_path / "cache") == 1
    assert "only models of stores and of the hub are kept there" in capsys.readouterr().err

"""The real engine on a model in a store that cuts answers, limits rates and changes: the same tokens, or a sentence."""

import httpx
import pytest

from inflight_engine.models.remote.snapshot import FOLDER_VARIABLE
from tests.engine.models.remote.store_server import store_server
from tools.bench.delivery.checkpoint import TINY, write_checkpoint

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
FLAGS = ("--dtype", "bfloat16", "--max-model-len", "256")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    write_checkpoint(path, TINY)
    return path


@pytest.fixture
def store(folder, monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "ours",
        "AWS_SECRET_ACCESS_KEY": "any",
        "no_proxy": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    with store_server() as store:
        store.add_folder(folder, "tiny")
        monkeypatch.setenv("INFLIGHT_MODEL_ENDPOINT", store.url)
        yield store


def answer(server):
    asked = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    choice = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=120).json()["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


@pytest.mark.slow
def test_a_store_that_cuts_and_limits_gives_the_answers_of_the_folder(own_server, store, folder):
    for shard in SHARDS:
        store.cuts[f"tiny/{shard}"] = [1000, 100_000, 7]
        store.statuses[f"tiny/{shard}"] = [503, 429]
    streamed = own_server(*FLAGS, model=f"s3://{store.bucket}/tiny")
    assert not any(store.cuts.values())
    found = answer(streamed)
    streamed.close()
    assert found == answer(own_server(*FLAGS, model=str(folder)))


@pytest.mark.slow
def test_a_shard_that_is_replaced_after_its_header_was_read_ends_the_engine(own_server, store):
    first = f"tiny/{SHARDS[0]}"
    content = store.files[first]
    held = store.etag

    def etag(path):
        """The store has another version once the header was asked for."""
        if path == first and store.requests["GET", first] > 1:
            store.files[first] = content[:-4] + b"else"
        return held(path)

    store.etag = etag
    server = own_server(*FLAGS, model=f"s3://{store.bucket}/tiny", wait=False)
    assert server.process.wait(200) == 1
    assert "model-00001-of-00002.safetensors has changed since this server first looked at it" in server.last_line()

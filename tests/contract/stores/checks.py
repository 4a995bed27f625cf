"""Checks that a model in a store is to an engine what was put there: files, tensors, answers, or one sentence."""

import json
import os
import re
from unittest import mock

import httpx
import pytest
import torch

from inflight_engine.models.checkpoints.source import ModelSourceError, resolve
from inflight_engine.models.checkpoints.weights import SafetensorsWeights, open_stored
from inflight_engine.models.remote.snapshot import FOLDER_VARIABLE, take_snapshot
from tests.engine.server.real_server import RealServer

FLAGS = "--max-num-seqs 2 --max-num-batched-tokens 64 --max-model-len 128 --num-kv-blocks 64".split()


def check_streamed(source, folder):
    """The settings and all tensors of the source, as an engine reads them, are those of the folder."""
    files = resolve(source)
    for path in folder.glob("*.json"):
        assert (files.folder / path.name).read_bytes() == path.read_bytes()
    streamed, expected = open_stored(files, ahead=True), SafetensorsWeights(folder)
    for name in json.loads((folder / "model.safetensors.index.json").read_bytes())["weight_map"]:
        assert torch.equal(streamed.get(name), expected.get(name))


def check_served(source, folder):
    """The command that a user starts answers with tokens, and its log and its metrics have the version of the model.

    Args:
        folder: of the server's log.
    """
    with mock.patch.dict(os.environ):
        os.environ.pop(FOLDER_VARIABLE, None)
        server = RealServer(folder, *FLAGS, model=source).wait_ready()
    try:
        asked = {"prompt": "The capital", "max_tokens": 4, "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 4
        told = re.search(
            r'inflight_model_info\{digest="(sha256:[0-9a-f]{64})"', httpx.get(f"{server.url}/metrics").text
        )
        assert told[1] in server.log.read_text()
    finally:
        server.close()


def check_replaced(source, folder, put):
    """A shard that changes between two reads is an error. Args: put: takes the name of a file and its new content."""
    found = take_snapshot(source)
    shard = found.shards[0]
    assert bytes(found.store.read(shard, 0, 100)) == (folder / shard.name).read_bytes()[:100]
    put(shard.name, bytes(shard.size))
    with pytest.raises(ModelSourceError, match="has changed since this server first looked at it"):
        found.store.read(shard, 100, 200)


def sentence(source):
    """Returns what the engine says of a source that it cannot read."""
    with pytest.raises(ModelSourceError) as error:
        resolve(source)
    return str(error.value)

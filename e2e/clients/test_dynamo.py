"""Dynamo's indexer, which reads the engine's KV cache events: prompts, evictions, batches that it missed, and a new
engine process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

BLOCK = 16
SMALL = ("--max-num-seqs=4", "--max-num-batched-tokens=64", f"--block-size={BLOCK}", "--num-kv-blocks=24")
PROMPT = [*range(100, 100 + 5 * BLOCK)]
WAIT_SECONDS = 60


def wait_for(condition):
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def post(url, **fields):
    asked = urllib.request.Request(url, json.dumps(fields).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=120) as answer:
        return json.load(answer)


class Published:
    """An engine that publishes events. Args: endpoints: of its sockets."""

    def __init__(self, url, process, endpoints, model):
        self.endpoints, self._url, self._process, self._model = endpoints, url, process, model

    def compute(self, token_ids):
        post(f"{self._url}/v1/completions", model=self._model, prompt=token_ids, max_tokens=1)

    def kill_engine_process(self):
        """Kills the oldest one: younger ones are spares."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        processes = [pid for pid in children if "engine_process" in Path(f"/proc/{pid}/cmdline").read_text()]
        os.kill(int(processes[0]), signal.SIGKILL)


@pytest.fixture(params=[("--swap-space=0",), ("--preemption=swap",)], ids=["device", "host memory too"])
def engine(request, serve, free_port, model):
    bound = {name: f"tcp://*:{free_port()}" for name in ("endpoint", "replay_endpoint")}
    endpoints = {name: each.replace("*", "127.0.0.1") for name, each in bound.items()}
    events = json.dumps({"enable_kv_cache_events": True, **bound})
    return Published(*serve(*SMALL, *request.param, "--kv-events-config", events), endpoints, model)


class Indexer:
    """The indexer's HTTP API."""

    def __init__(self, port, model):
        self._url, self._model = f"http://127.0.0.1:{port}", model

    def healthy(self):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self._url}/health", timeout=5):
            return True

    def register(self, endpoints):
        post(f"{self._url}/register", model_name=self._model, instance_id=1, block_size=BLOCK, **endpoints)

    def matched(self, token_ids):
        """Returns the leading tokens that the engine has, as far as the indexer knows."""
        found = post(f"{self._url}/query", model_name=self._model, token_ids=token_ids)["instances"]
        return found["1"]["longest_matched"] if found else 0

    def comes_to_know(self, token_ids, matched):
        wait_for(lambda: self.matched(token_ids) == matched)


@pytest.fixture
def indexer(tmp_path, free_port, model):
    port = free_port()
    with (tmp_path / "indexer.log").open("wb") as log:
        command = [sys.executable, "-m", "dynamo.indexer", "--port", str(port)]
        running = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        indexer = Indexer(port, model)
        wait_for(indexer.healthy)
        yield indexer
    finally:
        running.kill()
        running.wait()


def test_it_knows_what_the_engine_has(engine, indexer):
    """The first message that it gets leaves a gap, so it asks for those before."""
    engine.compute(PROMPT)
    indexer.register(engine.endpoints)
    indexer.comes_to_know(PROMPT, 0)  # nothing has come yet
    firsts = iter(range(20_000, 40_000, 100))

    def listens():  # a subscription takes a while, and does not say when it is there
        prompt = [*range(first := next(firsts), first + BLOCK)]
        engine.compute(prompt)
        return indexer.matched(prompt) == BLOCK

    wait_for(listens)
    indexer.comes_to_know(PROMPT, 5 * BLOCK)
    indexer.comes_to_know(PROMPT[: 2 * BLOCK] + PROMPT, 2 * BLOCK)
    for first in range(1000, 7000, 1000):  # more than the cache holds
        engine.compute([*range(first, first + 5 * BLOCK)])
    indexer.comes_to_know(PROMPT, 0)
    indexer.comes_to_know([*range(6000, 6000 + 5 * BLOCK)], 5 * BLOCK)
    engine.kill_engine_process()
    engine.compute(PROMPT)
    indexer.comes_to_know([*range(6000, 6000 + 5 * BLOCK)], 0)
    indexer.comes_to_know(PROMPT, 5 * BLOCK)

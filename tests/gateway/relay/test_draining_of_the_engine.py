"""Two real engines, their processes and models, behind the relay: one drains, or computes prompts alone, and the other
goes on with its answers, from the keys and values of the first."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from tests.engine.server.real_server import RealServer
from tests.gateway.relay.conftest import Setup, eventually
from tests.gateway.relay.fake_engine import FakeEngine
from tests.gateway.relay.test_channels_of_the_engine import PATIENT, text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FLAGS = (
    "--dtype float32 --max-num-seqs 16 --max-num-batched-tokens 512 --max-model-len 512 --num-kv-blocks 400 "
    "--swap-space 200Mi --preemption swap --served-model-name m"
)
PROMPT = [(number * 7919) % 40_000 + 100 for number in range(200)]
ASKED = {"model": "m", "max_tokens": 80, "temperature": 0, "ignore_eos": True, "stream": True}


class Engines(FakeEngine):
    """Real servers in place of stand-ins."""

    def __init__(self, folder, monkeypatch) -> None:
        super().__init__()
        self.servers: list[RealServer] = []
        self._folder, self._monkeypatch = folder, monkeypatch

    async def start(self, count: int) -> None:
        for number in range(count):
            folder = self._folder / str(number)
            folder.mkdir()
            self._monkeypatch.setenv("INFLIGHT_POD_UID", f"uid-{number}")
            self.servers.append(RealServer(folder, *FLAGS.split()))
        for server in self.servers:
            await asyncio.to_thread(server.wait_ready)
            self.addresses.append(server.url.removeprefix("http://"))

    async def stop(self, address: str | None = None) -> None:
        for server in self.servers:
            server.close()


async def ask(relay: Setup, number: int) -> str:
    status, _, body = await relay.post({**ASKED, "prompt": [*PROMPT[:number], *PROMPT]}, "/v1/completions")
    assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)
    return text(body)


def page(server: RealServer) -> dict[str, float]:
    return server.metrics()


async def test_answers_of_a_draining_engine_go_on_at_another_one_and_nothing_is_computed_again(
    make, tmp_path, monkeypatch
):
    engines = Engines(tmp_path, monkeypatch)
    relay = await make(PATIENT, engine=engines, engines=2)
    first, second = engines.servers
    alone = [await ask(relay, number) for number in range(1, 7)]
    streams = [asyncio.create_task(ask(relay, number)) for number in range(1, 7)]
    begun = page(first)["vllm:generation_tokens_total"]
    await eventually(lambda: page(first)["vllm:generation_tokens_total"] > begun + 6 * 20)
    first.process.send_signal(signal.SIGTERM)
    drained = time.monotonic()
    assert await asyncio.gather(*streams) == alone
    assert await asyncio.to_thread(first.process.wait, 30) == 0
    assert time.monotonic() - drained < 30
    told = page(second)
    assert told["inflight_peer_loaded_blocks_total"] > 0
    reports = [await relay.report(number) for number in range(12)]
    assert [report["continuations"] for report in reports] == [0] * 6 + [1] * 6


async def test_prompts_that_one_engine_computes_are_answered_by_another_one_as_if_it_were_alone(
    make, tmp_path, monkeypatch
):
    engines = Engines(tmp_path, monkeypatch)
    relay = await make(PATIENT, engine=engines, engines=2)
    first, second = engines.servers
    alone = [await ask(relay, number) for number in range(1, 4)]
    computed = page(first)["vllm:generation_tokens_total"]
    relay.picker.prefill = True
    assert await asyncio.gather(*(ask(relay, number) for number in range(1, 4))) == alone
    loaded = page(second)
    assert loaded["inflight_peer_loaded_blocks_total"] > 0
    assert loaded["inflight_peer_failed_reads_total"] == 0
    assert loaded["vllm:generation_tokens_total"] > 2 * (page(first)["vllm:generation_tokens_total"] - computed)
    reports = [await relay.report(number) for number in range(6)]
    assert [report["continuations"] for report in reports] == [0] * 3 + [1] * 3
    assert {report["endpoints"][-1] for report in reports[3:]} == {engines.addresses[1]}

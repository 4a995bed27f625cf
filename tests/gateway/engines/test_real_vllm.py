"""KV cache events of a real vLLM at the gateway: its stream of events, the names that the relay gives to the blocks of
prompts, and the picker's index of prefixes."""

import contextlib
import itertools
import json
import struct
import time

import httpx
import pytest

from inflight_base.manifest.engines import EngineType
from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.engines.event_streams import EventStreams
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.link.wire import Ask
from inflight_gateway.relay.answers.answer import Answer
from inflight_gateway.relay.answers.vllm import TEXT, stream_of
from inflight_gateway.relay.answers.vllm_blocks import note
from inflight_gateway.request.body import parse
from inflight_gateway.requests.view import view
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.types import Endpoint, KvEventPorts, Pick, ServiceConfig
from tests.engine.kv_events.test_real_engine import python_of
from tests.engine.server.real_server import CERTIFICATES
from tests.gateway.engines.test_event_stream import lose
from tests.gateway.gateway_stack import until
from tools.bench.vllm_server import served_vllm
from tools.measure.served import free_port

pytestmark = [pytest.mark.contract, pytest.mark.timeout(900)]

SERVICE = ServiceKey("default", "chat")
CONFIG = ServiceConfig(SERVICE, "u", "smollm2", engine=EngineType("vllm", plugin=True))
JSON = {"content-type": "application/json"}
BLOCK = 32
SMALL = (f"--block-size={BLOCK}", "--num-gpu-blocks-override=32", "--max-model-len=900")
"""A cache that holds three of the prompts."""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The URL of a vLLM, and the ports of its events."""
    python_of("vllm", "`make bench` installs it")
    ports = KvEventPorts(free_port(), free_port())
    sockets = {"endpoint": f"tcp://*:{ports.port}", "replay_endpoint": f"tcp://*:{ports.replay_port}"}
    events = json.dumps({"enable_kv_cache_events": True, "publisher": "zmq", **sockets})
    log, hashes = tmp_path_factory.mktemp("vllm") / "log", {"PYTHONHASHSEED": "0"}
    with served_vllm(log, *SMALL, "--kv-events-config", events, say=print, environment=hashes) as vllm:
        yield vllm.url, ports


class Gateway:
    """The parts of a relay and a picker that answers and events of an engine go through."""

    def __init__(self, url, ports):
        self._url, self._endpoint = url, Endpoint(url.removeprefix("http://"), "engine")
        self._ledger = Ledger(lambda _: [self._endpoint], {}.get, Estimates())
        self._events = EventStreams(self._ledger.publishes, time.monotonic)
        self._events.keep({self._endpoint.address: (SERVICE, ports)})
        self.stream = self._events._streams[self._endpoint.address][1]
        self._ids = map(str, itertools.count())

    async def connect(self):
        """A subscription takes a while, and does not say when it is there."""

        async def listens():
            await self.ask(f"{time.monotonic()} " * 5)
            return self.stream.blocks.block_size

        await until(listens, "the first events")
        assert self.stream.blocks.block_size == BLOCK

    async def ask(self, prompt, *, told=True):
        """Sends a prompt. Returns the names that the relay gives to its full blocks: none before the first event.

        Args:
            told: the picker gets the names. Without, it knows what the events say.
        """
        asked, now = stream_of(body_of(prompt), TEXT), time.monotonic()
        request, answer = self._view(asked.body, now), Answer()
        self._ledger.begin(request, Pick((self._endpoint,), "only"), now)
        asked.block_size = self._ledger.block_size(SERVICE, self._endpoint.address)
        reader = asked.reader(answer)
        async with (
            httpx.AsyncClient(verify=CERTIFICATES, timeout=120) as http,
            http.stream("POST", self._url + TEXT.decode(), content=asked.body, headers=JSON) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async for data in response.aiter_bytes():
                for frame in reader.feed(data):
                    answer.take(frame.notes)
        if told and answer.blocks is not None:
            self._ledger.told(request.request_id, answer.blocks, time.monotonic())
        self._ledger.end(request.request_id, time.monotonic())
        return names_of(answer)

    async def names(self, prompt):
        """Returns the names of the full blocks of a prompt, without sending it."""
        async with httpx.AsyncClient(verify=CERTIFICATES, timeout=120) as http:
            answer = await http.post(f"{self._url}/tokenize", json={"model": "smollm2", "prompt": prompt})
        told = Answer()
        told.take((note(",".join(map(str, answer.json()["tokens"])).encode(), BLOCK, ""),))
        return names_of(told)

    def held(self, names):
        """Returns how many of these blocks the engine has, as far as the gateway knows."""
        return sum(name in self.stream.blocks for name in names)

    async def comes_to_hold(self, names):
        await until(lambda: self.held(names) == len(names) > 0, "the events of these blocks", 30)

    def cached(self, prompt):
        """Returns the share of a prompt's hashes that the engine has, as the picker looks it up to rank engines."""
        request = self._view(body_of(prompt), time.monotonic())
        [load] = self._ledger.candidates(CONFIG, request, time.monotonic()).loads
        return load.cached_tokens / (len(request.prefix) * request.block_tokens)

    def close(self):
        self._events.close()

    def _view(self, body, now):
        return view(Ask(next(self._ids), 1, SERVICE, path=TEXT.decode(), body=parse(body)), CONFIG, now)


def body_of(prompt):
    return json.dumps({"model": "smollm2", "prompt": prompt, "max_tokens": 1, "stream": True}).encode()


def names_of(answer):
    return [] if answer.blocks is None else [name for (name,) in struct.iter_unpack("<Q", answer.blocks.names)]


@pytest.fixture
async def gateway(served):
    with contextlib.closing(Gateway(*served)) as gateway:
        await gateway.connect()
        yield gateway


async def test_the_index_has_the_blocks_of_a_prompt_that_was_sent_and_none_of_one_that_was_not(gateway):
    sent, half, other = "alpha " * 300, "alpha " * 150 + "beta " * 150, "beta " * 300
    names = await gateway.ask(sent, told=False)
    assert names == await gateway.names(sent)
    assert len(names) >= 300 // BLOCK
    await gateway.comes_to_hold(names)  # by events alone
    assert gateway.held(await gateway.names(other)) == 0
    shared = len({*names} & {*await gateway.names(half)})
    assert gateway.held(await gateway.names(half)) == shared == 150 // BLOCK
    await gateway.ask(sent)
    assert gateway.stream.state == "exact"
    assert gateway.cached(sent) > 0.9
    assert gateway.cached(other) == 0
    assert 0.4 < gateway.cached(half) < 0.6
    await gateway.ask(half)  # the same text goes on in another way
    assert gateway.cached(sent) > 0.9
    assert 0.4 < gateway.cached("alpha " * 150 + "gamma " * 150) < 0.6


async def test_what_the_engine_evicts_is_not_in_the_index(gateway):
    first = "delta " * 300
    names = await gateway.ask(first)
    await gateway.comes_to_hold(names)
    await gateway.ask(first)
    assert gateway.cached(first) > 0.9
    for word in ("one", "two", "red", "blue"):
        last = f"{word} " * 300
        await gateway.ask(last)
    await until(lambda: gateway.held(names) == 0, "the eviction of the first prompt", 30)
    assert gateway.stream.state == "exact"
    assert gateway.cached(first) == 0
    assert gateway.cached(last) > 0.9


async def test_batches_that_were_missed_are_replayed(gateway):
    lose(gateway.stream)
    lost = await gateway.ask("lambda " * 300, told=False)
    await until(lambda: "_came" not in vars(gateway.stream), "the loss of a message", 30)
    assert gateway.held(lost) == 0
    await gateway.comes_to_hold(await gateway.ask("omega " * 300, told=False))
    await gateway.comes_to_hold(lost)


async def test_a_gateway_that_comes_late_learns_of_earlier_blocks_when_a_prompt_with_them_is_answered(gateway, served):
    earlier = "kappa " * 300
    names = await gateway.ask(earlier)
    with contextlib.closing(Gateway(*served)) as late:
        await late.connect()
        await late.comes_to_hold(await late.ask("sigma " * 150))
        assert late.stream.state == "exact"
        assert late.held(names) == 0
        assert late.cached(earlier) == 0
        assert await late.ask(earlier) == names
        assert late.held(names) == len(names)
        assert late.cached(earlier) > 0.9

"""The state port over a real socket. Load comes from a fake picker: a dictionary."""

import asyncio
import json
import socket
import time
import tracemalloc
from contextlib import asynccontextmanager

import aiohttp
import pytest
import uvloop

from inflight_base.manifest.keys import ServiceKey
from inflight_base.signing import PEER_SIGNATURE, get_message, signed
from inflight_gateway.state import port as port_module
from inflight_gateway.state import stream as stream_module
from inflight_gateway.state.load import ServiceLoad
from inflight_gateway.state.picks import PicksLog
from inflight_gateway.state.port import StatePort
from inflight_gateway.state.stream import LoadStream
from inflight_gateway.types import Endpoint, Pick, RequestView
from inflight_operator.observe.gateway import GatewayReader
from tests.gateway.tenants.things import gateway_key
from tests.gateway.waiting import until
from tests.operator.gateway_pods import endpoint_slice

KEY = ServiceKey("team", "chat")
ENGINE = "10.0.0.1:8000"


class FakeLoad:
    def __init__(self):
        self.services, self.changed, self.asked = {KEY: ServiceLoad()}, {}, 0

    def service_loads(self):
        return self.services

    def changes(self):
        self.asked += 1
        changed, self.changed = self.changed, {}
        return changed


class Served:
    def __init__(self, name="gateway-0"):
        self.load, self.picks, self.reasons, self.metrics = FakeLoad(), PicksLog(), [], b"up 1\n"
        self.stream = LoadStream(name, self.load)
        self.key = gateway_key()
        self.port = StatePort(
            self.stream, self.picks, lambda: self.metrics, lambda: self.reasons, self.key, lambda _: "gateway-1"
        )

    def change(self, load):
        self.load.services = self.load.changed = {KEY: load}
        self.stream.changed()

    def send(self, in_flight):
        self.change(ServiceLoad(in_flight=in_flight))


@asynccontextmanager
async def serving(name="gateway-0"):
    served = Served(name)
    public, local = await served.port.start(0, 0, "127.0.0.1")
    served.address = f"127.0.0.1:{public}"
    async with (
        aiohttp.ClientSession(f"http://{served.address}") as served.public,
        aiohttp.ClientSession(f"http://127.0.0.1:{local}") as served.http,
    ):
        yield served
    await served.port.close()


@pytest.fixture
async def served():
    async with serving() as one:
        yield one


@asynccontextmanager
async def watching(served):
    async with served.http.get("/v1/state?watch=1") as answer:
        assert answer.status == 200

        async def line():
            async with asyncio.timeout(60):
                return json.loads(await answer.content.readline())

        yield line


async def get(served, path):
    async with served.http.get(path) as answer:
        return answer.status, await answer.text()


def signature(served, path):
    return {PEER_SIGNATURE: signed(served.key.keys, get_message(path), time.time())}


async def get_public(served, path, path_signed=None):
    """Args: path_signed: path that the signature is for; None: there is no signature."""
    headers = {} if path_signed is None else signature(served, path_signed)
    async with served.public.get(path, headers=headers) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("at", [get, get_public])
async def test_health_readiness_and_metrics_are_for_all(served, at):
    assert await at(served, "/healthz") == (200, "ok\n")
    assert await at(served, "/readyz") == (200, "ok\n")
    served.reasons = ["Envoy has not connected", "services have not been listed"]
    assert await at(served, "/readyz") == (503, "Envoy has not connected\nservices have not been listed\n")
    assert await at(served, "/metrics") == (200, "up 1\n")


async def test_on_the_pod_network_the_load_is_for_those_who_have_the_key_and_picks_for_none(served):
    for path in ("/v1/state", "/v1/state?watch=1"):
        for path_signed in (None, "/v1/state?watch=0", "/metrics"):
            assert (await get_public(served, path, path_signed))[0] == 401
    assert (await get_public(served, "/v1/state", "/v1/state"))[0] == 200
    assert (await get_public(served, "/v1/picks?namespace=team&service=chat", "/v1/picks"))[0] == 404
    served.key.current = None
    assert (await get_public(served, "/v1/state", "/v1/state"))[0] == 401


async def test_anonymous_watchers_keep_no_signed_one_out(served):
    host, _, port = served.address.partition(":")
    streams = [await asyncio.open_connection(host, int(port)) for _ in range(2 * port_module.MAX_WATCHERS)]
    for _, writer in streams:
        writer.write(b"GET /v1/state?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    for reader, _ in streams:
        assert b" 401 " in await reader.readline()
    path = "/v1/state?watch=1"
    async with served.public.get(path, headers=signature(served, path)) as watcher:
        for number in (0, 3, 4):
            async with asyncio.timeout(60):
                assert json.loads(await watcher.content.readline())["services"][0]["in_flight"] == number
            served.send(max(3, number + 1))
    for reader, writer in streams:
        await asyncio.wait_for(reader.read(), 15)  # closed by the port, not as an idle connection
        writer.close()


async def test_beside_anonymous_watchers_the_operator_hears_of_a_held_request(served, monkeypatch):
    monkeypatch.setattr("inflight_operator.observe.gateway.GATEWAY_STATE_PORT", int(served.address.partition(":")[2]))
    woken = []

    async def slices():
        return [endpoint_slice("gateway-0")]

    async def held(key):
        woken.append(key)

    async def watches_anonymously():
        async with served.public.get("/v1/state?watch=1") as answer:
            return answer.status

    assert {await watches_anonymously() for _ in range(port_module.MAX_WATCHERS)} == {401}
    reader = GatewayReader(served.public, slices, held, lambda: [b"gateway key"])
    following = asyncio.create_task(reader.run())
    await reader.settled(60.0)
    served.change(ServiceLoad(held=1))
    await until(lambda: woken == [KEY])
    following.cancel()


async def test_connections_without_a_request_are_closed_and_others_stay(served, monkeypatch):
    monkeypatch.setattr(port_module, "HEAD_SECONDS", 0.1)
    async with watching(served) as line:
        await line()
        host, _, port = served.address.partition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        silent[0][1].write(b"GET /healthz HTTP/1.1\r\nHost: ")
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
        served.send(1)
        assert (await line())["services"][0]["in_flight"] == 1


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_request_that_came_while_the_picker_did_not_run_is_answered(monkeypatch, loop):
    monkeypatch.setattr(port_module, "HEAD_SECONDS", 0.1)

    async def story():
        async with serving() as served:
            host, _, port = served.address.partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            await until(lambda: served.port._public._silent)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            time.sleep(0.2)  # noqa: ASYNC251 (the whole process stands still)
            assert b" 200 " in await asyncio.wait_for(reader.readline(), 30)
            writer.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(story())


async def test_pages_of_metrics_take_a_bounded_share_of_the_time(served, monkeypatch):
    now, pages = 1000.0, []

    def page():
        nonlocal now
        pages.append(now)
        now += 0.02
        return b"up 1\n"

    monkeypatch.setattr(port_module, "monotonic", lambda: now)
    served.port._metrics_page = page
    for _ in range(100):
        assert await get_public(served, "/metrics") == (200, "up 1\n")
        now += 0.01
    assert pages == pytest.approx([1000.0, 1000.4, 1000.8], abs=0.02)


async def test_one_full_line_without_watch(served):
    served.load.services = {KEY: ServiceLoad(held=2)}
    status, text = await get(served, "/v1/state")
    assert status == 200
    assert json.loads(text)["full"] is True
    assert json.loads(text)["services"][0]["held"] == 2


async def test_the_first_held_request_is_told_at_once(monkeypatch):
    monkeypatch.setattr(stream_module, "FULL_SECONDS", 600.0)
    async with serving() as served, watching(served) as line:
        assert (await line())["services"][0]["held"] == 0
        await asyncio.sleep(2 * stream_module.MIN_SECONDS)
        monkeypatch.setattr(stream_module, "MIN_SECONDS", 600.0)  # of which it waits for none
        served.change(ServiceLoad(held=1, held_prompt_tokens=100))
        news = await line()
        assert news["full"] is False
        assert news["services"][0]["held"] == 1


async def test_many_changes_make_few_lines_and_the_last_one_is_right(served):
    async with watching(served) as line:
        await line()
        loop = asyncio.get_running_loop()
        start, lines = loop.time(), 0
        last = {}
        for number in range(1, 51):
            served.send(number)
            await asyncio.sleep(0.004)
        while last.get("in_flight") != 50:
            last = (await line())["services"][0]
            lines += 1
        assert lines <= (loop.time() - start) / stream_module.MIN_SECONDS + 2


async def test_full_lines_come_without_any_change(served, monkeypatch):
    monkeypatch.setattr(stream_module, "FULL_SECONDS", 0.1)
    async with serving() as other, watching(other) as line:
        assert [(await line())["full"] for _ in range(3)] == [True, True, True]


async def test_a_watcher_that_comes_later_has_the_same_load_as_those_before(served):
    async with watching(served) as first:
        await first()
        served.send(7)
        assert (await first())["services"][0]["in_flight"] == 7
        async with watching(served) as second:
            assert (await second())["services"][0]["in_flight"] == 7
            served.send(0)
            assert (await second())["services"][0]["in_flight"] == 0
            assert (await first())["services"][0]["in_flight"] == 0


async def test_load_is_not_computed_while_nobody_watches(served):
    async with watching(served) as line:
        await line()
    for _ in range(20):
        served.send(1)
        served.send(2)
        await asyncio.sleep(0.01)
    await until(lambda: served.stream.watchers == 0)
    asked = served.load.asked
    for _ in range(20):
        served.stream.changed()
        await asyncio.sleep(0.005)
    assert served.load.asked == asked


async def test_watchers_are_bounded_and_one_that_reads_nothing_is_cut_off(served, monkeypatch):
    monkeypatch.setattr(port_module, "MAX_WATCHERS", 2)
    monkeypatch.setattr(port_module, "WRITE_SECONDS", 0.2)
    monkeypatch.setattr(stream_module, "MIN_SECONDS", 0.0)
    _, writer = await asyncio.open_connection(served.http._base_url.host, served.http._base_url.port, limit=1024)
    writer.write(b"GET /v1/state?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    async with watching(served) as line:
        await line()
        await until(lambda: served.stream.watchers == 2)
        assert (await get(served, "/v1/state?watch=1"))[0] == 503
        names = [ServiceKey("team", f"chat-{number}") for number in range(2500)]
        number = 0
        async with asyncio.timeout(30):
            while served.stream.watchers == 2:
                number += 1
                served.load.changed = {name: ServiceLoad(number) for name in names}
                served.stream.changed()
                await line()
    writer.close()


async def test_picks_of_a_service(served):
    request = RequestView("own", KEY, 0.0, prompt_tokens=12, tenant="acme", external_id="r-1")
    served.picks.picked(request, Pick((Endpoint(ENGINE, "chat-0"),), "only", scores={"prefix": 0.5}), 0.25, 1000.0)
    status, text = await get(served, "/v1/picks?namespace=team&service=chat&last=5")
    assert status == 200
    assert json.loads(text)["owner"] == "gateway-1"
    [pick] = json.loads(text)["picks"]
    assert (pick["request_id"], pick["tenant"], pick["finished"]) == ("r-1", "acme", None)
    assert pick["attempts"][0]["pods"] == ["chat-0"]
    assert pick["attempts"][0]["held_s"] == 0.25
    assert pick["attempts"][0]["scores"] == {"prefix": 0.5}


@pytest.mark.parametrize("query", ["", "?namespace=team", "?namespace=team&service=chat&last=0", "?service=a&last=x"])
async def test_picks_with_a_bad_query_are_refused(served, query):
    assert (await get(served, f"/v1/picks{query}"))[0] == 400


async def test_a_taken_port_is_named(served):
    other = Served()
    with pytest.raises(OSError, match="cannot listen on --http-port"):
        await other.port.start(int(served.address.partition(":")[2]), 0, "127.0.0.1")
    with pytest.raises(OSError, match="cannot listen on --local-port"):
        await other.port.start(0, served.http._base_url.port, "127.0.0.1")


async def _open(served, path):
    """A client that asks for a page and reads nothing."""
    host, _, port = served.address.partition(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, (host, int(port)))
    await loop.sock_sendall(client, f"GET {path} HTTP/1.1\r\nHost: gateway\r\n\r\n".encode())
    return client


async def test_pages_of_metrics_that_nobody_reads_take_little_memory_and_their_connections_end(served, monkeypatch):
    monkeypatch.setattr(port_module, "WRITE_SECONDS", 0.5)
    served.metrics = b"x" * 2**24
    tracemalloc.start()
    clients = [await _open(served, "/metrics") for _ in range(20)]
    await asyncio.sleep(0.2)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    status, page = await get_public(served, "/metrics")
    assert (status, len(page)) == (200, 2**24)
    assert kept < 8 * 2**20
    await until(lambda: not served.port._readers)
    for client in clients:
        client.close()


async def test_many_connections_keep_neither_a_watcher_nor_a_new_client_out(served, monkeypatch):
    monkeypatch.setattr(port_module, "MAX_CONNECTIONS", 8)
    path = "/v1/state?watch=1"
    async with served.public.get(path, headers=signature(served, path)) as watcher:
        assert json.loads(await watcher.content.readline())
        clients = [await _open(served, "/healthz") for _ in range(20)]
        assert await get_public(served, "/healthz") == (200, "ok\n")
        assert len(served.port._public._runner.server.connections) <= 10
        served.send(1)
        async with asyncio.timeout(60):
            assert json.loads(await watcher.content.readline())
        for client in clients:
            client.close()

"""The stand-in for Envoy, before h2's own server."""

from __future__ import annotations

import asyncio
from random import Random

import aiohttp
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, RequestReceived, StreamEnded, StreamReset
from hyperframe.frame import GoAwayFrame

from tests.gateway.relay.conftest import eventually
from tests.gateway.relay.front import Front

LARGE = 8 * 2**20


class Server(asyncio.Protocol):
    """A connection. Each request's path names a method that answers it. Attributes: resets: codes, by stream."""

    def __init__(self, connections: list[Server]) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self.asked: dict[int, dict[bytes, bytes]] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: dict[int, asyncio.Event] = {}
        self.resets: dict[int, int] = {}
        self.sent = 0
        self._moved = asyncio.Event()
        self._answers: list[asyncio.Task[None]] = []
        connections.append(self)

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.h2.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            match event:
                case RequestReceived(stream_id=number, headers=headers):
                    self.asked[number] = dict(headers)
                    self.bodies[number], self.ended[number] = b"", asyncio.Event()
                    answer = getattr(self, self.asked[number][b":path"].decode().strip("/"))
                    self._answers.append(asyncio.create_task(answer(number)))
                case DataReceived(stream_id=number, data=data, flow_controlled_length=size):
                    self.bodies[number] += data
                    if self.asked[number][b":path"] != b"/untaken":
                        self.h2.acknowledge_received_data(size, number)
                case StreamEnded(stream_id=number):
                    self.ended[number].set()
                case StreamReset(stream_id=number, error_code=code):
                    self.resets[number] = code
        self._moved.set()
        self.flush()

    def flush(self) -> None:
        self.transport.write(self.h2.data_to_send())

    def head(self, number: int, *fields: tuple[bytes, bytes], status: int = 200, end: bool = False) -> None:
        self.h2.send_headers(number, [(b":status", b"%d" % status), *fields], end_stream=end)
        self.flush()

    async def data(self, number: int, data: bytes, *, most: int = 2**14) -> None:
        while data:
            size = min(most, len(data), self.h2.local_flow_control_window(number))
            if not size:
                self._moved.clear()
                await self._moved.wait()
                continue
            self.h2.send_data(number, data[:size])
            self.flush()
            self.sent += size
            data = data[size:]

    def end(self, number: int) -> None:
        self.h2.end_stream(number)
        self.flush()

    def reset(self, number: int, code: ErrorCodes) -> None:
        self.h2.reset_stream(number, code)
        self.flush()

    # Answers.

    async def echo(self, number: int) -> None:
        await self.ended[number].wait()
        body, random = self.bodies[number], Random(0)
        length = self.asked[number].get(b"content-length")
        self.head(number, *([(b"content-length", length)] if length else []))
        while body:
            size = random.choice((1, 100, 70_000))
            await self.data(number, body[:size], most=random.randint(1, 2**14))
            body = body[size:]
        self.end(number)

    async def silent(self, number: int) -> None: ...

    async def untaken(self, number: int) -> None: ...

    async def bare(self, number: int) -> None:
        self.head(number, status=204, end=True)

    async def large(self, number: int) -> None:
        self.head(number)
        await self.data(number, b"x" * LARGE)
        self.end(number)

    async def begun(self, number: int) -> None:
        self.head(number)
        await self.data(number, b"abc")

    async def early(self, number: int) -> None:
        self.head(number, (b"content-length", b"3"), status=413)
        await self.data(number, b"abc")
        self.end(number)
        self.reset(number, ErrorCodes.NO_ERROR)


class World:
    """A front and its server. Attributes: connections: to the server."""

    async def start(self, folder) -> World:
        loop = asyncio.get_running_loop()
        self.socket, relay = str(folder / "front.sock"), folder / "relay.sock"
        self.connections: list[Server] = []
        self._server = await loop.create_unix_server(lambda: Server(self.connections), str(relay))
        self._front = await Front(relay).start(folder / "front.sock")
        self._http = aiohttp.ClientSession(connector=aiohttp.UnixConnector(self.socket, limit=0))
        return self

    async def stop(self) -> None:
        await self._http.close()
        await self._front.stop()
        self._server.close()

    def ask(self, path: str, method: str = "POST", **more):
        return self._http.request(method, f"http://svc.ns/{path}", **more)

    async def raw(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self.socket, limit=2**10)
        writer.write(data)
        return reader, writer

    async def asked(self, number: int = 1) -> Server:
        """The first connection, once it has a request."""
        await eventually(lambda: self.connections and number in self.connections[0].asked)
        return self.connections[0]


@pytest.fixture
async def world(tmp_path):
    world = await World().start(tmp_path)
    yield world
    await world.stop()


async def pieces(data: bytes, random: Random):
    while data:
        size = random.choice((1, 1000, 200_000))
        yield data[:size]
        data = data[size:]
        await asyncio.sleep(0)


@pytest.mark.parametrize("known", [True, False], ids=["length", "chunked"])
async def test_bodies_are_the_same_on_both_sides_in_one_connection(world, known):
    async def echoed(seed: int) -> bool:
        random = Random(seed)
        body = random.randbytes(random.choice((1, 5000, 600_000)))
        headers = {"content-length": str(len(body))} if known else {}
        async with world.ask("echo", data=pieces(body, random), headers=headers) as answer:
            assert ("content-length" in answer.headers) is known
            return await answer.read() == body

    for _ in range(2):
        assert all(await asyncio.gather(*(echoed(seed) for seed in range(20))))
    assert len(world.connections) == 1


async def test_heads_are_those_that_envoy_sends(world):
    async with world.ask("bare", "HEAD", headers={"X-Mixed": "a", "connection": "keep-alive", "te": "x"}) as answer:
        assert answer.status == 204
        assert "transfer-encoding" not in answer.headers
    asked = (await world.asked()).asked[1]
    pseudo = {b":method": b"HEAD", b":scheme": b"http", b":authority": b"svc.ns", b":path": b"/bare"}
    assert asked.items() >= {**pseudo, b"x-mixed": b"a"}.items()
    assert not asked.keys() & {b"host", b"connection", b"te"}


async def test_100_continue_is_answered_before_the_body(world):
    async with world.ask("echo", data=b"abc", expect100=True) as answer:
        assert await answer.read() == b"abc"
    assert b"expect" not in (await world.asked()).asked[1]


async def test_a_client_that_leaves_resets_its_stream_alone(world):
    _, writer = await world.raw(b"POST /silent HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nab")
    server = await world.asked()
    writer.transport.abort()
    await eventually(lambda: server.resets == {1: ErrorCodes.INTERNAL_ERROR})
    async with world.ask("echo", data=b"abc") as answer:
        assert await answer.read() == b"abc"
    assert len(world.connections) == 1


async def test_a_reset_or_a_lost_connection_breaks_the_answer_off(world):
    for path, error in (("silent", aiohttp.ServerDisconnectedError), ("begun", aiohttp.ClientPayloadError)):
        for end in (lambda server: server.reset(max(server.asked), ErrorCodes.INTERNAL_ERROR),
                    lambda server: server.transport.abort()):  # fmt: skip

            async def read(path=path):
                async with world.ask(path, data=b"abc") as answer:
                    await answer.read()

            reading = asyncio.create_task(read())
            await asyncio.sleep(0.1)
            end(world.connections[-1])
            with pytest.raises(error):
                await reading


async def test_an_early_answer_is_whole_and_ends_the_connection(world):
    reader, writer = await world.raw(b"POST /early HTTP/1.1\r\nhost: a\r\ncontent-length: 5000000\r\n\r\n")
    for _ in range(50):
        writer.write(b"x" * 100_000)
        await writer.drain()
    answer = await asyncio.wait_for(reader.read(), 60)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"\r\nconnection: close\r\n" in answer
    assert answer.endswith(b"\r\n\r\nabc")
    writer.close()


async def test_a_client_that_does_not_read_holds_its_stream_alone(world):
    reader, writer = await world.raw(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n")
    server = await world.asked()
    await asyncio.sleep(0.3)
    assert server.sent < 2**20
    async with world.ask("large") as answer:
        assert len(await answer.read()) == LARGE
    read = 0
    await reader.readuntil(b"\r\n\r\n")
    while size := int(await reader.readuntil(b"\r\n"), 16):
        read += len(await reader.readexactly(size))
        await reader.readexactly(2)
    assert read == LARGE
    writer.close()


async def test_a_body_that_is_not_taken_stops_its_client(world):
    _, writer = await world.raw(b"POST /untaken HTTP/1.1\r\nhost: a\r\ncontent-length: 8000000\r\n\r\n")
    writer.write(b"x" * 8_000_000)
    server = await world.asked()
    await asyncio.sleep(0.3)
    assert len(server.bodies[1]) == 2**16 - 1
    assert writer.transport.get_write_buffer_size() > 6_000_000
    writer.transport.abort()


async def test_after_a_goaway_streams_end_and_the_next_one_has_a_new_connection(world):
    reader, writer = await world.raw(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\nabc")
    server = await world.asked()
    # h2 itself would take no more frames after its own.
    server.transport.write(GoAwayFrame(0, last_stream_id=2**31 - 1).serialize())
    await asyncio.sleep(0.1)
    async with world.ask("echo", data=b"abc") as answer:
        assert await answer.read() == b"abc"
    assert len(world.connections) == 2
    writer.write(b"def")
    assert (await reader.readuntil(b"def")).endswith(b"\r\n\r\nabcdef")
    await eventually(server.transport.is_closing)
    writer.close()

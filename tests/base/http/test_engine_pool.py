"""Connections to engines, among them hostile ones."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from inflight_base.http import engine_pool as module
from inflight_base.http.engine_pool import EnginePool, Loss
from inflight_base.http.heads import Headers
from tests.gateway.relay.conftest import eventually

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Reader:
    """Keeps a response. Attributes: over: done when it ended or was lost."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.body = b""
        self.loss: Loss | None = None
        self.over = asyncio.Event()
        self.on_head: Callable[[], None] = lambda: None

    def head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self.on_head()

    def data(self, data: bytes) -> None:
        self.body += data

    def ended(self) -> None:
        self.over.set()

    def lost(self, loss: Loss) -> None:
        self.loss = loss
        self.over.set()

    def engine_writable(self, *, now: bool) -> None:
        pass


class Engine:
    """Answers each request by the next bytes of its script, the last of them from then on. None: it closes."""

    def __init__(self) -> None:
        self.script: list[list[bytes] | None] = [[OK]]
        self.connections = 0
        self.closed = 0
        self.address = ""
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server

    async def start(self) -> Engine:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def stop(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                parts = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                if parts is None:
                    break
                for part in parts:
                    if part:
                        writer.write(part)
                        await writer.drain()
                    await asyncio.sleep(0.005 * (len(parts) > 1))
                if parts[-1] == b"":  # an empty last part ends the connection
                    break
        writer.close()
        self.closed += 1


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = await Engine().start()
    yield engine
    await engine.stop()


@pytest.fixture
async def pool() -> AsyncIterator[EnginePool]:
    pool = EnginePool()
    yield pool
    pool.close()


async def call(
    pool: EnginePool, engine: Engine, request: bytes = GET, *, within: float = 3.0, fresh: bool = False
) -> Reader:
    reader = Reader()
    connection = pool.call(engine.address, reader, fresh=fresh)
    connection.write(request, no_body=request.startswith(b"HEAD"))
    connection.sent = True
    await asyncio.wait_for(reader.over.wait(), within)
    return reader


async def test_a_connection_serves_requests_one_after_the_other_and_several_at_a_time(engine, pool):
    for _ in range(3):
        assert (await call(pool, engine)).body == b"ok"
    assert (engine.connections, len(pool._idle_until)) == (1, 1)
    await asyncio.gather(*(call(pool, engine) for _ in range(3)))
    assert (engine.connections, len(pool._idle_until)) == (3, 3)


async def test_idle_connections_share_a_parser(engine, pool):
    await asyncio.gather(*(call(pool, engine) for _ in range(3)))
    assert {connection._parser for connection in pool._idle_until} == {module._NO_PARSER}
    assert (await call(pool, engine)).body == b"ok"


async def test_a_connection_whose_making_has_not_ended_serves_a_second_request(engine, pool, monkeypatch):
    loop, made = asyncio.get_running_loop(), asyncio.Event()
    connect = loop.create_connection

    async def create_connection(*args, **options):
        connected = await connect(*args, **options)
        try:
            await made.wait()
        except asyncio.CancelledError:
            connected[0].close()  # as the loop does
            raise
        return connected

    monkeypatch.setattr(loop, "create_connection", create_connection)
    for _ in range(2):
        reader = await call(pool, engine, within=10)
        assert (reader.body, reader.loss) == (b"ok", None)
    made.set()
    assert engine.connections == 1


async def test_requests_in_flight_are_counted_by_engine_until_their_responses_end(engine, pool):
    engine.script = [[OK[:-1], b"k"]]
    tasks = [asyncio.create_task(call(pool, engine)) for _ in range(2)]
    await asyncio.sleep(0)
    assert pool.in_flight(engine.address) == 2
    await asyncio.gather(*tasks)
    connection = pool.call(engine.address, Reader())
    assert pool.in_flight(engine.address) == 1
    connection.cancel()
    assert pool.in_flight(engine.address) == 0


async def test_connections_send_at_once_and_notice_a_node_that_is_gone(engine, pool):
    reader = Reader()
    connection = pool.call(engine.address, reader)
    connection.write(GET)
    connection.sent = True
    await reader.over.wait()
    found = connection._transport.get_extra_info("socket")
    assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_a_refused_connection_is_told_as_such(engine, pool):
    await engine.stop()
    assert (await call(pool, engine)).loss is Loss.REFUSED
    engine.address = "no-such-host.invalid:80"
    assert (await call(pool, engine)).loss is Loss.REFUSED


@pytest.fixture
def full() -> Iterator[Engine]:
    """An engine that accepts no connection: the queue of those to accept is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            each = stack.enter_context(socket.socket())
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                each.connect(listener.getsockname())
        engine = Engine()
        engine.address = f"127.0.0.1:{listener.getsockname()[1]}"
        yield engine


async def test_an_engine_that_accepts_no_connection_in_time_has_refused_it(full):
    assert (await call(EnginePool(connect_s=0.1), full)).loss is Loss.REFUSED


async def test_a_call_that_is_cancelled_ends_the_attempt_to_connect(full):
    pool = EnginePool(connect_s=None)
    connection = pool.call(full.address, Reader())
    await asyncio.sleep(0.05)
    (task,) = pool._connecting.values()
    connection.cancel()
    assert pool._connecting == {}
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_connection_that_was_closed_while_idle_is_stale_and_a_new_one_never_is(engine, pool):
    engine.script = [[OK], None, None]
    await call(pool, engine)
    assert (await call(pool, engine)).loss is Loss.STALE
    assert (await call(pool, engine)).loss is Loss.BROKEN


async def test_a_connection_that_breaks_within_an_answer_is_broken(engine, pool):
    engine.script = [[OK], [OK[:3], b""], [OK[:-1], b""]]
    await call(pool, engine)
    assert (await call(pool, engine)).loss is Loss.BROKEN
    assert (await call(pool, engine)).loss is Loss.BROKEN


async def test_idle_connections_are_closed_before_engines_close_them(engine, pool, monkeypatch):
    monkeypatch.setattr(module, "IDLE_S", 1.0)
    await asyncio.gather(*(call(pool, engine) for _ in range(3)))
    await asyncio.sleep(0.5)
    await call(pool, engine)
    await eventually(lambda: len(pool._idle_until) < 3)
    assert len(pool._idle_until) == 1
    await eventually(lambda: engine.closed == 3)
    assert len(pool._idle_until) == 0


async def test_idle_connections_are_bounded_for_each_engine_and_in_all(engine, monkeypatch):
    monkeypatch.setattr(module, "MAX_IDLE_OF_ONE", 3)
    pool = EnginePool(max_idle=4)
    other = await Engine().start()
    await asyncio.gather(*(call(pool, engine) for _ in range(5)))
    assert len(pool._idle_until) == 3
    await asyncio.gather(*(call(pool, other) for _ in range(3)))
    assert len(pool._idle_until) == 4
    before = other.connections
    await asyncio.gather(*(call(pool, other) for _ in range(3)))
    assert other.connections == before
    await other.stop()


async def test_the_last_idle_connection_to_an_engine_may_give_way_to_another_one_to_it(engine):
    pool = EnginePool(max_idle=2)
    other = await Engine().start()
    await call(pool, engine)
    await call(pool, other)
    await call(pool, engine, fresh=True)
    assert len(pool._idle_until) == 2
    before = engine.connections
    await call(pool, engine)
    assert engine.connections == before
    for connection in [*pool._idle_until]:
        connection.close()
    assert pool._idle == {}
    await other.stop()


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nokk",
        b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\x01b\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nx: a\x00b\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nx: a\rset-cookie: b\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nx: a\r\n folded\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nx y: a\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 101 Go\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 999 No\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 000 No\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 11 + OK,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100 + b"content-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 66_000 + b"\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 " + b"y" * 200_000,
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;" + b"x" * 200_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx: " + b"y" * 200_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + b"x: y\r\n" * 50_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nok",
    ],
    ids=range(22),
)
async def test_a_hostile_answer_ends_its_request_and_its_connection(engine, pool, answer):
    engine.script = [[answer], [OK]]
    assert (await call(pool, engine)).loss is Loss.GARBLED
    assert (len(pool._idle_until), pool.in_flight(engine.address)) == (0, 0)
    assert (await call(pool, engine)).body == b"ok"
    assert engine.connections == 2


async def test_an_endless_head_is_given_up_without_being_kept(engine, pool):
    engine.script = [[b"HTTP/1.1 200 OK\r\n", *[b"x: " + b"y" * 60_000] * 100]]
    assert (await call(pool, engine)).loss is Loss.GARBLED


@pytest.mark.parametrize("pieces", [1, 2], ids=["in one read", "later"])
@pytest.mark.parametrize("size", [2, 300_000])
async def test_data_after_an_answer_is_no_answer_to_the_next_request(engine, pool, size, pieces):
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size
    forged = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"
    engine.script = [[answer + forged] if pieces == 1 else [answer, forged], [OK]]
    first, again = Reader(), Reader()

    def next_request() -> None:
        first.over.set()
        pool.call(engine.address, again).write(GET)

    first.ended = next_request
    pool.call(engine.address, first).write(GET)
    await asyncio.wait_for(first.over.wait(), 3)
    await asyncio.wait_for(again.over.wait(), 3)
    assert len(first.body) == size
    # Sent before the forged answer came, the request is lost with its connection.
    assert again.body == b"ok" or again.loss is not None
    if pieces == 1:
        assert again.body == b"ok"


async def test_data_on_an_idle_connection_closes_it(engine, pool):
    engine.script = [[OK, b"", b"more"], [OK]]
    await call(pool, engine)
    await eventually(lambda: not pool._idle_until)
    assert (await call(pool, engine)).body == b"ok"


@pytest.mark.parametrize(
    ("request_head", "answer"),
    [
        (b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"),
        (GET, b"HTTP/1.1 204 No\r\n\r\n"),
        (GET, b"HTTP/1.1 304 No\r\ncontent-length: 9\r\n\r\n"),
    ],
    ids=["HEAD", "204", "304"],
)
async def test_answers_without_a_body_end_with_their_head(engine, pool, request_head, answer):
    engine.script = [[answer], [OK]]
    reader = await call(pool, engine, request_head)
    assert (reader.loss, reader.body) == (None, b"")
    assert (await call(pool, engine)).body == b"ok"


async def test_interim_answers_are_skipped(engine, pool):
    engine.script = [[b"HTTP/1.1 103 Hints\r\nx: 1\r\n\r\n" * 10 + OK]]
    reader = await call(pool, engine)
    assert (reader.status, reader.body, reader.headers) == (200, b"ok", [(b"content-length", b"2")])


async def test_an_answer_without_a_length_ends_with_its_connection(engine, pool):
    engine.script = [[b"HTTP/1.1 200 OK\r\n\r\nsome", b" more", b""]]
    reader = await call(pool, engine)
    assert (reader.loss, reader.body, len(pool._idle_until)) == (None, b"some more", 0)


async def test_trailers_are_dropped(engine, pool):
    engine.script = [[b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx: late\r\n\r\n"]]
    reader = await call(pool, engine)
    assert (reader.body, [name for name, _ in reader.headers]) == (b"ok", [b"transfer-encoding"])
    assert len(pool._idle_until) == 1


@pytest.mark.parametrize("cut", range(1, 120, 7))
async def test_an_answer_is_the_same_in_any_parts(engine, pool, cut):
    head = b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 200 OK\r\nx: y\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = head + b"2\r\nok\r\n3\r\nyes\r\n0\r\n\r\n"
    engine.script = [[answer[:cut], answer[cut:]]]
    assert (await call(pool, engine)).body == b"okyes"
    assert len(pool._idle_until) == 1


async def test_the_rest_of_an_answer_is_awaited_only_for_a_moment(engine, pool, monkeypatch):
    monkeypatch.setattr(module, "REST_WITHIN_S", 0.1)
    engine.script = [[b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", *[b"1\r\nx\r\n"] * 4000]]
    reader = Reader()
    connection = pool.call(engine.address, reader)
    begun = asyncio.Event()
    reader.on_head = lambda: (connection.read_rest(), begun.set())
    connection.write(GET)
    await begun.wait()
    assert pool.in_flight(engine.address) == 1
    await eventually(lambda: pool.in_flight(engine.address) == 0)
    assert not reader.over.is_set()


async def test_a_request_that_is_not_written_whole_costs_its_connection(engine, pool):
    reader = Reader()
    pool.call(engine.address, reader).write(GET)
    await reader.over.wait()
    assert (reader.body, len(pool._idle_until)) == (b"ok", 0)

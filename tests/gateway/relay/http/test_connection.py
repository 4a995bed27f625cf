"""HTTP/2 of the relay, as its peer sees it: the library h2, or frames that Envoy would not send."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import h2.config
import h2.connection
import h2.events
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jh2._hazmat import Encoder

from inflight_gateway.relay.http import frames
from inflight_gateway.relay.http.client import WINDOW_BYTES
from inflight_gateway.relay.http.connection import MAX_BUFFER_BYTES, Connection

HEAD = [(":method", "POST"), (":scheme", "http"), (":authority", "svc.ns"), (":path", "/v1/completions")]
TEXT = (b"content-type", b"text/plain")


class Taken:
    """An exchange that only notes what it is told."""

    def __init__(self, request, client):
        self.request, self.client = request, client
        self.data, self.events, self.writable = b"", [], []
        self.fails = b""

    def begin(self):
        self.events.append("begin")

    def body(self, data):
        if self.fails and self.fails in data:
            raise RuntimeError("a fault of the relay")
        self.data += data

    def body_ended(self):
        self.events.append("ended")

    def left(self):
        self.events.append("left")

    def client_writable(self, *, now):
        self.writable.append(now)


class Wire:
    """A transport without a socket, and the peer behind it. Attributes: taken: exchanges by stream."""

    def __init__(self, *, window=65535):
        self.out, self.closed, self.taken = b"", False, []
        self.peer = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self.bodies, self.heads, self.resets, self.ended = {}, {}, {}, set()
        self.connection = Connection(self._begin, lambda _: None, lambda _: None)
        self.connection.connection_made(self)
        self.peer.initiate_connection()
        self.peer.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})

    def _begin(self, request, client):
        self.taken.append(Taken(request, client))
        return self.taken[-1]

    # A transport's.

    def write(self, data):
        self.out += data

    def close(self):
        if not self.closed:
            self.closed = True
            self.connection.connection_lost(None)

    abort = close

    def is_closing(self):
        return self.closed

    def set_write_buffer_limits(self, *, high):
        assert high == MAX_BUFFER_BYTES

    # The peer's.

    def ask(self, *more, ends=False, head=HEAD):
        stream = self.peer.get_next_available_stream_id()
        self.peer.send_headers(stream, [*head, *more], end_stream=ends)
        return stream

    async def turn(self, cut=1 << 30, *, acknowledge=True):
        """Carries all bytes both ways, at most `cut` at once, until nothing moves."""
        while True:
            await asyncio.sleep(0)
            there, back = self.peer.data_to_send(), self.out
            self.out = b""
            if not there and not back:
                return
            for at in range(0, len(there), cut):
                self.connection.data_received(there[at : at + cut])
            for at in range(0, len(back), cut):
                for event in self.peer.receive_data(back[at : at + cut]):
                    self._note(event, acknowledge=acknowledge)

    def _note(self, event, *, acknowledge):
        if isinstance(event, h2.events.ResponseReceived):
            self.heads[event.stream_id] = dict(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
            if acknowledge and event.flow_controlled_length:
                self.peer.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended.add(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self.resets[event.stream_id] = event.error_code

    async def raw(self, *parts):
        """Sends bytes, past the library, and returns the code of the GOAWAY that follows; None: none."""
        if not self.connection._prefaced:
            await self.turn()
        for part in parts:
            if not self.closed:
                self.connection.data_received(part)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        at = self.out.find(b"\0\0\x08\x07\0\0\0\0\0")
        return None if at < 0 else int.from_bytes(self.out[at + 13 : at + 17], "big")


def head_block(*more, head=HEAD):
    return Encoder().encode([(name.encode(), value.encode(), False) for name, value in [*head, *more]], False)


def head_frame(stream, *more, flags=frames.END_HEADERS | frames.END_STREAM, head=HEAD):
    return frames.frame(frames.HEADERS, flags, stream, head_block(*more, head=head))


@given(
    bodies=st.lists(st.tuples(st.lists(st.binary(max_size=40_000), max_size=4), st.booleans()), min_size=1, max_size=4),
    answers=st.lists(st.lists(st.binary(max_size=200_000), max_size=4), min_size=4, max_size=4),
    cut=st.integers(1, 70_000),
    window=st.integers(1000, 100_000),
)
@settings(max_examples=40, deadline=None)
def test_bodies_and_answers_of_parallel_streams_arrive_whole_at_every_cut_and_window(bodies, answers, cut, window):
    async def run():
        wire = Wire(window=window)
        streams = []
        for parts, known in bodies:
            length = [("content-length", str(sum(map(len, parts))))] if known else []
            streams.append(wire.ask(*length))
        await wire.turn(cut)
        for index in range(4):
            for stream, (parts, _) in zip(streams, bodies, strict=True):
                if index < len(parts):
                    part = parts[index]
                    while part:
                        size = min(len(part), wire.peer.local_flow_control_window(stream), 16384)
                        wire.peer.send_data(stream, part[:size])
                        part = part[size:]
                        await wire.turn(cut)
        for stream in streams:
            wire.peer.end_stream(stream)
        await wire.turn(cut)
        for taken, (parts, known), answer in zip(wire.taken, bodies, answers, strict=False):
            assert taken.data == b"".join(parts)
            assert taken.request.length == (len(taken.data) if known else None)
            assert taken.events == ["begin", "ended"]
            taken.client.start(200, [TEXT], len(b"".join(answer)) if known else None)
            for part in answer:
                taken.client.write(part)
            taken.client.finish()
        await wire.turn(cut)
        assert wire.ended == set(streams)
        for stream, answer in zip(streams, answers, strict=False):
            assert wire.bodies.get(stream, b"") == b"".join(answer)
        assert not wire.connection._clients
        assert "left" not in [event for taken in wire.taken for event in taken.events]

    asyncio.run(run())


async def test_a_client_that_does_not_read_stops_its_own_stream_alone():
    wire = Wire()
    slow, quick = wire.ask(ends=True), wire.ask(ends=True)
    await wire.turn()
    first, second = (taken.client for taken in wire.taken)
    for client in (first, second):
        client.start(200, [TEXT], None)
    for _ in range(20):
        first.write(b"x" * 10_000)
    await wire.turn(acknowledge=False)
    assert first.unsent_bytes == 200_000 - 65535
    assert wire.taken[0].writable == [False]
    wire.peer.increment_flow_control_window(1_000_000)
    second.write(b"y" * 1000)
    await wire.turn(acknowledge=False)
    assert wire.bodies[quick] == b"y" * 1000
    wire.peer.increment_flow_control_window(1_000_000, slow)
    await wire.turn(acknowledge=False)
    assert len(wire.bodies[slow]) == 200_000
    assert wire.taken[0].writable == [False, True]


async def test_streams_wait_while_envoy_reads_nothing_and_go_on_in_their_order():
    wire = Wire()
    streams = [wire.ask(ends=True) for _ in range(3)]
    await wire.turn()
    wire.connection.pause_writing()
    for number, taken in enumerate(wire.taken):
        taken.client.start(200, [TEXT], None)
        taken.client.write(b"%d" % number)
        taken.client.finish()
    await wire.turn()
    assert wire.bodies == {}
    wire.connection.resume_writing()
    await wire.turn()
    assert [wire.bodies[stream] for stream in streams] == [b"0", b"1", b"2"]
    assert wire.ended == set(streams)


async def test_no_more_of_a_body_comes_while_its_engine_does_not_read():
    wire = Wire()
    stream = wire.ask()
    await wire.turn()
    wire.taken[0].client.pause()
    sent = 0
    while size := min(16384, wire.peer.local_flow_control_window(stream)):
        wire.peer.send_data(stream, b"x" * size)
        sent += size
        await wire.turn()
    assert sent == WINDOW_BYTES
    wire.taken[0].client.resume()
    await wire.turn()
    assert wire.peer.local_flow_control_window(stream) == WINDOW_BYTES


async def test_a_response_before_the_end_of_its_request_is_whole_and_the_rest_is_not_read():
    wire = Wire()
    stream = wire.ask(("content-length", "5000"))
    await wire.turn()
    wire.taken[0].client.respond(413, [TEXT], b"too large")
    await wire.turn()
    assert (wire.heads[stream][b":status"], wire.bodies[stream]) == (b"413", b"too large")
    assert wire.resets[stream] == frames.NO_ERROR
    assert await wire.raw(frames.frame(frames.DATA, 0, stream, b"x" * 100)) is None
    assert wire.taken[0].data == b""


@pytest.mark.parametrize("sent", [b"xyz", b"xyzuvw"], ids=["shorter", "longer"])
async def test_a_body_that_is_not_as_long_as_it_says_ends_its_stream_alone(sent):
    """Else the rest would be another request for the engine."""
    wire = Wire()
    await wire.turn()
    await wire.raw(
        head_frame(1, ("content-length", "5"), flags=frames.END_HEADERS),
        head_frame(3),
        frames.frame(frames.DATA, frames.END_STREAM, 1, sent),
    )
    assert wire.taken[0].events == ["begin", "left"]
    assert wire.taken[0].data in (b"", b"xyz")
    assert b'"code": "malformed_request"' in wire.out
    assert wire.taken[1].events == ["begin", "ended"]


async def test_a_fault_in_one_exchange_ends_its_stream_alone(caplog):
    wire = Wire()
    bad, good = wire.ask(), wire.ask()
    await wire.turn()
    wire.taken[0].fails = b"bad"
    wire.peer.send_data(bad, b"bad")
    wire.peer.send_data(good, b"bad", end_stream=True)
    await wire.turn()
    # Envoy would send a request again that is reset before its head.
    assert wire.heads[bad][b":status"] == b"500"
    assert wire.taken[0].events == ["begin", "left"]
    assert wire.taken[1].events == ["begin", "ended"]
    assert "a fault of the relay" in caplog.text


async def test_a_fault_while_a_stream_is_given_up_reaches_no_other(caplog):
    wire = Wire()
    streams = [wire.ask() for _ in range(4)]
    await wire.turn()
    for taken in wire.taken[:3]:
        taken.fails = b"bad"
        taken.left = lambda: 1 / 0
    wire.peer.send_data(streams[0], b"bad")
    wire.peer.reset_stream(streams[1])
    await wire.turn()
    assert not wire.closed
    wire.close()
    assert wire.taken[3].events == ["begin", "left"]
    assert caplog.text.count("ZeroDivisionError") == 3


class Call(NamedTuple):
    """Something that an exchange does, in whatever order."""

    what: str
    size: int


CALLS = st.builds(
    Call, st.sampled_from(["start", "start known", "write", "finish", "abort", "respond"]), st.integers(0, 30_000)
)


@given(calls=st.lists(CALLS, max_size=8), window=st.sampled_from([100, 20_000, 65535]), when=st.integers(0, 8))
@settings(max_examples=150, deadline=None)
def test_whatever_an_exchange_does_another_stream_goes_on(calls, window, when):
    """Envoy closes a connection for a frame that may not come; the library raises an error."""

    async def run():
        wire = Wire(window=window)
        bad, good = wire.ask(ends=True), wire.ask(ends=True)
        await wire.turn()
        client, other = (taken.client for taken in wire.taken)
        other.start(200, [TEXT], None)
        for index, call in enumerate(calls):
            match call.what:
                case "start" | "start known":
                    client.start(200, [TEXT], call.size if "known" in call.what else None)
                case "write":
                    client.write(b"x" * call.size)
                case "finish":
                    client.finish()
                case "abort":
                    client.abort()
                case "respond":
                    client.respond(200, [TEXT], b"x" * call.size)
            if index == when:
                await wire.turn()
        other.write(b"good")
        other.finish()
        await wire.turn()
        assert wire.bodies[good] == b"good"
        assert good in wire.ended
        if any(call.what in ("finish", "abort", "respond") for call in calls):
            assert bad in wire.ended or bad in wire.resets
            assert not wire.connection._clients

    asyncio.run(run())


async def test_streams_that_may_all_send_do_so_over_several_turns_of_the_loop():
    """The relay's memory would hold all that many clients have not read, a second time."""
    wire = Wire()
    streams = [wire.ask(ends=True) for _ in range(100)]
    await wire.turn()
    wire.connection.pause_writing()
    for taken in wire.taken:
        taken.client.respond(200, [TEXT], b"x" * 60_000)
    await asyncio.sleep(0)
    wire.connection._transport, sizes = wire, []
    write = wire.write
    wire.write = lambda data: (sizes.append(len(data)), write(data))
    wire.peer.increment_flow_control_window(10**8)
    wire.connection.resume_writing()
    await wire.turn()
    assert {len(wire.bodies[stream]) for stream in streams} == {60_000}
    assert max(sizes) < MAX_BUFFER_BYTES + 100_000


async def test_a_client_that_leaves_is_told_to_its_exchange_and_gets_no_more():
    wire = Wire()
    stream, other = wire.ask(), wire.ask()
    await wire.turn()
    wire.peer.reset_stream(stream)
    await wire.turn()
    left = wire.taken[0]
    assert left.events == ["begin", "left"]
    left.client.respond(200, [TEXT], b"late")
    left.client.abort()
    await asyncio.sleep(0)
    assert wire.out == b""
    assert other not in wire.resets
    wire.close()
    assert wire.taken[1].events == ["begin", "left"]


ANSWER_TO_PING = frames.frame(frames.PING, frames.ACK, 0, bytes(8))


async def test_a_draining_relay_serves_what_is_under_way_and_then_closes():
    wire = Wire()
    await wire.raw(head_frame(1))
    wire.connection.drain()
    wire.connection.drain()
    # A request that crosses the GOAWAY.
    assert await wire.raw(head_frame(3), ANSWER_TO_PING) == frames.NO_ERROR
    assert wire.out.count(frames.frame(frames.PING, 0, 0, bytes(8))) == 1
    for taken in wire.taken:
        assert not wire.closed
        taken.client.respond(200, [TEXT], b"served")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wire.closed
    assert wire.out.count(b"served") == 2


async def test_an_idle_relay_that_drains_closes_once_envoy_knows():
    wire = Wire()
    await wire.turn()
    wire.connection.drain()
    await wire.raw()
    assert not wire.closed
    await wire.raw(ANSWER_TO_PING)
    assert wire.closed


async def test_a_connection_without_a_request_closes_at_once():
    """Envoy's health checks send nothing."""
    wire = Wire()
    wire.connection.drain()
    assert wire.closed


async def test_heads_longer_than_a_frame_go_both_ways():
    wire = Wire()
    long = "v" * 40_000
    stream = wire.ask(("x-long", long), ends=True)
    await wire.turn(cut=1000)
    assert dict(wire.taken[0].request.headers)[b"x-long"] == long.encode()
    wire.taken[0].client.respond(200, [(b"X-Back", long.encode())], b"")
    await wire.turn(cut=1000)
    assert wire.heads[stream][b"x-back"] == long.encode()
    assert stream in wire.ended


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_answers_without_a_body_end_with_their_head(method, status):
    wire = Wire()
    stream = wire.ask(ends=True, head=[(":method", method), *HEAD[1:]])
    await wire.turn()
    client = wire.taken[0].client
    client.start(status, [TEXT], 7)
    client.write(b"nothing")
    await wire.turn()
    assert stream in wire.ended
    client.finish()
    await wire.turn()
    assert (wire.bodies, wire.resets) == ({}, {})


@pytest.mark.parametrize("answered", ["whole", "unknown"])
async def test_a_stream_ends_with_the_last_byte_that_its_client_counts(answered):
    """A relay that dies after it has answered loses no request: Envoy knows that the answer is complete."""
    wire = Wire()
    stream = wire.ask(ends=True)
    await wire.turn()
    client = wire.taken[0].client
    client.start(200, [TEXT], 4 if answered == "whole" else None)
    client.write(b"te")
    client.write(b"xt")
    await wire.turn()
    assert (stream in wire.ended) == (answered == "whole")
    client.finish()
    await wire.turn()
    assert stream in wire.ended
    assert wire.bodies[stream] == b"text"


async def test_trailers_end_a_request():
    wire = Wire()
    stream = wire.ask()
    wire.peer.send_data(stream, b"body")
    wire.peer.send_headers(stream, [("x-sum", "1")], end_stream=True)
    await wire.turn()
    assert (wire.taken[0].data, wire.taken[0].events) == (b"body", ["begin", "ended"])


@pytest.mark.parametrize(
    "head",
    [
        [(":method", "foo"), *HEAD[1:]],
        [(":method", "G ET"), *HEAD[1:]],
        HEAD[1:],
        HEAD[:3],
        [*HEAD[:3], (":path", "/a b")],
        [*HEAD[:3], (":path", "/a\r\nx: y")],
        [*HEAD, ("x", "a\nb: c")],
        [*HEAD, ("x\n", "a")],
        [*HEAD, ("content-length", "x")],
        [*HEAD, ("content-length", "-1")],
    ],
)
async def test_a_head_that_an_engine_would_read_otherwise_is_refused(head):
    wire = Wire()
    assert await wire.raw(head_frame(1, head=head)) is None
    assert wire.taken == []
    assert wire.out.count(b'"code": "malformed_request"') == 1
    # The request was complete.
    assert frames.frame(frames.RST_STREAM, 0, 1, frames.number(frames.NO_ERROR)) not in wire.out


OPEN = head_frame(1, flags=frames.END_HEADERS)


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([frames.frame(frames.DATA, 0, 1, b"x")], frames.PROTOCOL_ERROR),
        ([frames.frame(frames.DATA, 0, 0, b"x")], frames.PROTOCOL_ERROR),
        ([head_frame(2)], frames.PROTOCOL_ERROR),
        ([frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff")], frames.COMPRESSION_ERROR),
        ([frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xc1" + b"\xff" * 9)], frames.COMPRESSION_ERROR),
        ([frames.frame(frames.HEADERS, frames.END_HEADERS, 1)], frames.PROTOCOL_ERROR),
        ([frames.frame(frames.HEADERS, frames.PADDED, 1, b"\x05")], frames.PROTOCOL_ERROR),
        ([OPEN, head_frame(1, flags=frames.END_HEADERS)], frames.PROTOCOL_ERROR),
        ([OPEN, frames.frame(frames.CONTINUATION, 0, 1, b"x")], frames.ENHANCE_YOUR_CALM),
        ([head_frame(1, flags=0), frames.frame(frames.PING, 0, 0, bytes(8))], frames.PROTOCOL_ERROR),
        (
            [head_frame(1, flags=0), *[frames.frame(frames.CONTINUATION, 0, 1, b"x" * 16384)] * 18],
            frames.ENHANCE_YOUR_CALM,
        ),
        ([OPEN, *[frames.frame(frames.DATA, 0, 1, b"x" * 16384)] * 17], None),
        ([frames.frame(frames.DATA, 0, 1, b"x" * 16385)], frames.FRAME_SIZE_ERROR),
        ([frames.frame(frames.PUSH_PROMISE, 0, 1, bytes(4))], frames.PROTOCOL_ERROR),
        ([frames.frame(frames.SETTINGS, 0, 0, bytes(5))], frames.FRAME_SIZE_ERROR),
        ([frames.frame(frames.WINDOW_UPDATE, 0, 0, bytes(3))], frames.FRAME_SIZE_ERROR),
        ([frames.frame(99, 0, 0, b"unknown"), frames.frame(frames.PRIORITY, 0, 1, bytes(5))], None),
    ],
)
async def test_frames_that_break_the_protocol_close_the_connection_with_a_code(parts, code):
    wire = Wire()
    assert await wire.raw(*parts) == code
    assert wire.closed == (code is not None)


async def test_more_of_a_body_than_its_window_closes_the_connection():
    wire = Wire()
    await wire.raw(OPEN)
    wire.taken[0].client.pause()
    parts = [frames.frame(frames.DATA, 0, 1, b"x" * 16384)] * (WINDOW_BYTES // 16384 + 1)
    assert await wire.raw(*parts) == frames.FLOW_CONTROL_ERROR
    assert wire.taken[0].events == ["begin", "left"]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"PRX", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"])
async def test_another_protocol_closes_the_connection(data):
    connection = Wire()
    for byte in data:
        if not connection.closed:
            connection.connection.data_received(bytes((byte,)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    assert connection.closed

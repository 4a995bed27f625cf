"""gRPC over HTTP/2, against gRPC's own client, and frame by frame."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.ext_proc.http2 import MAX_MESSAGE_BYTES, Connection, framed

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8


class Echo:
    """Answers each message with itself, turned round."""

    def __init__(self, stream, calls):
        self.stream, self.received, self.ends = stream, [], 0
        calls.append(self)

    def message(self, content):
        self.received.append(content)
        if content == b"fail":
            raise RuntimeError("a bug")
        self.stream.send(framed(content[::-1]))

    def closed(self):
        self.ends += 1


class Transport:
    def __init__(self):
        self.written, self.aborted = b"", False

    def write(self, data):
        self.written += data

    def abort(self):
        self.aborted = True


class Peer:
    """The other side of a connection, in frames."""

    def __init__(self, greet=True):
        self.calls, self.transport, self.connections = [], Transport(), set()
        self.connection = Connection(
            lambda stream: Echo(stream, self.calls), self.connections.add, self.connections.discard
        )
        self.connection.connection_made(self.transport)
        self.greeting = self.frames()
        if greet:
            self.say(PREFACE + frame(SETTINGS))
            assert self.frames() == [(SETTINGS, ACK, 0, b"")]

    def say(self, data):
        self.connection.data_received(data)

    def frames(self):
        found, written, self.transport.written = [], self.transport.written, b""
        while written:
            length, kind, flags, number = int.from_bytes(written[:3], "big"), *struct.unpack(">BBI", written[3:9])
            found.append((kind, flags, number, written[9 : 9 + length]))
            written = written[9 + length :]
        return found


def frame(kind, flags=0, number=0, payload=b""):
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, number) + payload


def opened(number):
    return frame(HEADERS, END_HEADERS, number, b"any header block")


async def test_grpcs_own_client_gets_answers_of_any_size_on_many_streams_and_an_end(tmp_path):
    calls = []
    server = await asyncio.get_running_loop().create_unix_server(
        lambda: Connection(lambda stream: Echo(stream, calls), lambda _: None, lambda _: None), str(tmp_path / "socket")
    )
    options = [("grpc.max_receive_message_length", -1)]
    async with server, grpc.aio.insecure_channel(f"unix:{tmp_path / 'socket'}", options=options) as channel:

        async def call(number):
            stream = channel.stream_stream("/any/Method")()
            for content in (b"", b"%d" % number, bytes(number * 1000)):
                await stream.write(content)
                assert await stream.read() == content[::-1]
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() == grpc.StatusCode.OK

        await asyncio.gather(*(call(number) for number in range(60)))
    assert len(calls) == 60
    assert all(one.ends == 1 for one in calls)


async def test_a_body_of_the_maximum_size_is_taken_and_a_larger_one_ends_its_call_alone(tmp_path):
    calls = []

    class Length(Echo):
        def message(self, content):
            self.stream.send(framed(b"%d" % len(content)))

    server = await asyncio.get_running_loop().create_unix_server(
        lambda: Connection(lambda stream: Length(stream, calls), lambda _: None, lambda _: None),
        str(tmp_path / "socket"),
    )
    options = [("grpc.max_send_message_length", -1)]
    async with server, grpc.aio.insecure_channel(f"unix:{tmp_path / 'socket'}", options=options) as channel:
        other = channel.stream_stream("/any/Method")()
        await other.write(b"first")
        assert await other.read() == b"5"
        large = channel.stream_stream("/any/Method")()
        await large.write(bytes(MAX_MESSAGE_BYTES))
        assert await large.read() == b"%d" % MAX_MESSAGE_BYTES
        with suppress(grpc.aio.AioRpcError):  # where the call ends before all is written
            await large.write(bytes(MAX_MESSAGE_BYTES + 1))
        with pytest.raises(grpc.aio.AioRpcError):
            await large.read()
        await other.write(b"second")
        assert await other.read() == b"6"
        assert [one.ends for one in calls] == [0, 1]
        other.cancel()


@given(st.data())
def test_messages_arrive_whole_and_in_order_however_they_are_split(data):
    messages = data.draw(st.lists(st.binary(max_size=40), max_size=8))
    stream = b"".join(framed(each) for each in messages)
    sent = PREFACE + frame(SETTINGS) + opened(1)
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        part, stream = stream[:size], stream[size:]
        padding = data.draw(st.integers(0, 5))
        sent += frame(DATA, PADDED, 1, bytes([padding]) + part + bytes(padding)) if padding else frame(DATA, 0, 1, part)
    peer = Peer(greet=False)
    while sent:
        size = data.draw(st.integers(1, len(sent)))
        peer.say(sent[:size])
        sent = sent[size:]
    assert [one.received for one in peer.calls] == [messages]
    answered = b"".join(payload for kind, _, number, payload in peer.frames() if (kind, number) == (DATA, 1))
    assert answered == b"".join(framed(each[::-1]) for each in messages)


STEPS = st.lists(
    st.tuples(st.sampled_from(("open", "say", "end", "reset", "trailers", "fail")), st.integers(0, 3)), max_size=30
)


@given(STEPS, st.booleans())
def test_every_call_closes_once_and_nothing_is_said_afterwards(steps, lost):
    peer, open_, number = Peer(), {}, 1
    for step, which in steps:
        if step == "open":
            peer.say(opened(number))
            open_[number] = peer.calls[-1]
            number += 2
            continue
        if not open_:
            continue
        stream = sorted(open_)[which % len(open_)]
        say = {
            "say": frame(DATA, 0, stream, framed(b"x")),
            "end": frame(DATA, END_STREAM, stream),
            "trailers": frame(HEADERS, END_HEADERS | END_STREAM, stream),
            "reset": frame(RST_STREAM, 0, stream, bytes(4)),
            "fail": frame(DATA, 0, stream, framed(b"fail")),
        }[step]
        peer.say(say)
        if step != "say":
            call = open_.pop(stream)
            assert call.ends == 1
            peer.frames()
            peer.say(frame(DATA, 0, stream, framed(b"late")) if step != "trailers" else b"")
            call.stream.send(framed(b"late"))
            assert peer.frames() == []
    if lost:
        peer.connection.connection_lost(None)
    assert [one.ends for one in peer.calls] == [0 if one in open_.values() and not lost else 1 for one in peer.calls]
    assert peer.connections == (set() if lost else {peer.connection})


def test_a_failing_call_is_reset_and_others_go_on():
    peer = Peer()
    peer.say(opened(1) + opened(3) + frame(DATA, 0, 1, framed(b"fail")) + frame(DATA, 0, 3, framed(b"ab")))
    assert [(kind, number) for kind, _, number, _ in peer.frames()] == [(RST_STREAM, 1), (HEADERS, 3), (DATA, 3)]


def test_answers_wait_in_order_while_the_client_takes_no_more_data():
    peer = Peer()
    peer.say(opened(1) + opened(3))
    first, second = peer.calls
    first.stream.send(framed(bytes(60_000)))
    second.stream.send(framed(bytes(20_000)))
    first.stream.send(framed(b"last"))
    assert sum(len(payload) for kind, _, _, payload in peer.frames() if kind == DATA) == 60_005
    peer.say(frame(WINDOW_UPDATE, 0, 0, (50_000).to_bytes(4, "big")))
    sent = [(kind, number, len(payload)) for kind, _, number, payload in peer.frames() if kind == DATA]
    assert sent == [(DATA, 3, 16_384), (DATA, 3, 3621), (DATA, 1, 9)]


def test_what_waited_for_a_call_that_has_closed_is_not_sent():
    peer = Peer()
    peer.say(opened(1) + opened(3))
    first, second = peer.calls
    first.stream.send(framed(bytes(60_000)))
    second.stream.send(framed(bytes(20_000)))
    peer.say(frame(RST_STREAM, 0, 3, bytes(4)))
    peer.frames()
    peer.say(frame(WINDOW_UPDATE, 0, 0, (50_000).to_bytes(4, "big")))
    assert peer.frames() == []


def test_a_stream_takes_as_much_as_its_window_says():
    peer = Peer()
    peer.say(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 100)) + opened(1))
    call = peer.calls[0]
    call.stream.send(framed(bytes(90)))
    with pytest.raises(ValueError, match="window"):
        call.stream.send(framed(bytes(90)))
    peer.say(frame(WINDOW_UPDATE, 0, 1, (200).to_bytes(4, "big")))
    call.stream.send(framed(bytes(90)))


def test_room_for_data_is_given_before_any_and_again_before_it_ends():
    peer = Peer()
    assert [(kind, number) for kind, _, number, _ in peer.greeting] == [(SETTINGS, 0), (WINDOW_UPDATE, 0)]
    peer.say(opened(1))
    given = 0
    for _ in range(2**31 // 16_384 // 64):
        peer.connection._unacknowledged += 63 * 16_384  # as if so many frames more had come
        peer.say(frame(DATA, 0, 99, bytes(16_384)))
        given += sum(int.from_bytes(payload, "big") for kind, _, _, payload in peer.frames() if kind == WINDOW_UPDATE)
    assert 2**30 <= given <= 2**31


def test_pings_are_answered_and_what_is_not_understood_is_ignored():
    peer = Peer()
    peer.say(frame(PING, 0, 0, b"12345678") + frame(PING, ACK, 0, b"12345678") + frame(77, 0, 5, b"?"))
    assert peer.frames() == [(PING, ACK, 0, b"12345678")]
    peer.say(
        frame(HEADERS, 0, 1, b"long") + frame(CONTINUATION, END_HEADERS, 1, b"er") + frame(DATA, 0, 1, framed(b""))
    )
    assert [kind for kind, *_ in peer.frames()] == [HEADERS, DATA]


@pytest.mark.parametrize("bytes_", [b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", PREFACE + b"\xff" * 9])
def test_another_protocol_or_a_frame_that_is_too_large_ends_the_connection(bytes_):
    peer = Peer(greet=False)
    peer.say(bytes_)
    assert peer.transport.aborted

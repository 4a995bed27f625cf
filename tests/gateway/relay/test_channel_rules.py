"""Relay's and engine's halves of channels, joined in memory: in any order of events each stream gets its own bytes and
ends once, nothing of it stays, and an engine that sends more than it may is stopped."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from starlette.datastructures import Headers

from inflight_base.http.engine_pool import Loss
from inflight_base.manifest.keys import ServiceKey
from inflight_contract.channels import CHANNEL_HEADER, COMMAND, FRAME, MAX_FRAME_BYTES
from inflight_engine.server.answers.channels import Channels as EngineChannels
from inflight_engine.server.answers.send import keep_server_send
from inflight_gateway.relay.channels import AGAIN_S, CHANNEL, MAX_UNREAD_BYTES, OPEN_WITHIN_S, SILENCE_S, Channels
from tests.base.virtual_time import VirtualTimeLoop, in_virtual_time

ADDRESS, SERVICE = "10.0.0.1:8000", ServiceKey("ns", "svc")
BYTES = random.Random(0).randbytes(2**22)
SIZES = st.sampled_from([30, 0, 1, MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, 3 * MAX_FRAME_BYTES])
STATES = st.sampled_from(["begun", "answered", "begun", "answered", "asked"])
MORE = st.booleans()
FLAGS = st.sampled_from([[False], [True], [True, False], [False, True]])
CUTS = st.lists(st.sampled_from([10**7, 1, FRAME.size, 50, MAX_FRAME_BYTES + FRAME.size]), min_size=1, max_size=4)


def sizes(data, number):
    """Returns the bytes of a stream in whole frames."""
    total = at = 0
    while at < len(data):
        of, length = FRAME.unpack_from(data, at)
        assert length <= MAX_FRAME_BYTES
        total += length * (of == number)
        at += FRAME.size + length
    return total


class Wire:
    """A channel's connection. Attributes: up, down: bytes under way to engine and relay. written: all that the engine
    has sent. commands: that reached it. may_fail: something happened after which the relay gives the channel up."""

    def __init__(self, relay):
        self.relay, self.why, self.name, self.engine, self.task = relay, "cut", "", None, None
        self.begun_at = asyncio.get_running_loop().time()
        self.up = self.down = self.written = self.commands = b""
        self.answered = self.closed = self.may_fail = False
        self.received, self.writable = asyncio.Queue(), asyncio.Event()
        self.writable.set()

    def write(self, data):
        if self.name:
            self.up += data.partition(b"\r\n")[2][:-2]
        else:
            self.name = data.partition(CHANNEL + b": ")[2][:32].decode()

    def cancel(self):
        self.closed, self.closed_at = True, asyncio.get_running_loop().time()
        self.received.put_nowait({"type": "http.disconnect"})
        self.writable.set()

    def accept(self, engines):
        self.engine, scope = engines.open(self.name), {"type": "http"}
        keep_server_send(scope, self._send)
        self.task = asyncio.create_task(self.engine(scope, self.received.get, self._send))

    async def _send(self, message):
        if message["type"] == "http.response.body":
            self.written += message["body"]
            await self.writable.wait()
            self.down += message["body"]

    def deliver_up(self, size):
        data, self.up = self.up[:size], self.up[size:]
        self.commands += data
        self.received.put_nowait({"type": "http.request", "body": data, "more_body": True})

    def deliver_down(self, size):
        if self.task is None or self.closed:
            return
        if not self.answered:
            self.answered = True
            self.relay.head(200, [])
        data, self.down = self.down[:size], self.down[size:]
        if data:
            self.relay.data(data)
        if self.task.done() and not self.down and not self.closed:
            self.relay.ended()

    def may_send(self, number):
        """True if the engine was last told so."""
        whole = self.commands[: len(self.commands) // COMMAND.size * COMMAND.size]
        return dict(COMMAND.iter_unpack(whole)).get(number, 0) == 1


class Stream:
    """A stream as client and engine know it. Attributes: over: the relay has cancelled it or was told of its end.
    given: bytes of its events. complete: it has all of them. left: the engine gave it up. stopped_at: bytes that the
    engine had sent when it was told to wait; None: it was told to send."""

    def __init__(self, wire):
        self.wire, self.lane, self.way, self.task = wire, None, None, None
        self.read, self.given, self.stopped_at = b"", 0, 0
        self.over = self.cancelled = self.complete = self.left = False
        self.todo = asyncio.Queue()

    def data(self, data):
        assert self.lane.begun
        assert not self.over
        self.read += data
        assert BYTES.startswith(self.read, self.start)

    def ended(self):
        assert not self.over
        self.over = True
        assert self.complete
        assert len(self.read) == self.given

    def lost(self, loss):
        assert not self.over
        self.over = True
        assert (self.wire.closed, self.wire.may_fail, loss) == (True, True, Loss.BROKEN)

    @property
    def start(self):
        return self.lane.number * 1009

    @property
    def sent(self):
        return sizes(self.wire.written + b"".join(self.wire.engine._unwritten), self.lane.number)

    def answer(self, engines):
        """Brings its request to the engine."""
        self.way = engines.lane(Headers({CHANNEL_HEADER: self.lane.name.decode()}), self._send)
        if self.way is not None:
            self.task = asyncio.create_task(self._write())
        elif not self.over:  # the answer says that its events do not come in the channel
            self.cancel()

    async def _write(self):
        more = True
        while more:
            body, more = await self.todo.get()
            await self.way.send({"type": "http.response.body", "body": body, "more_body": more})

    async def _send(self, message):
        """Ends the response of its own connection, without a body."""
        assert not message["body"]

    def give(self, size, more):
        begin = self.start + self.given
        self.todo.put_nowait((BYTES[begin : begin + size], more))
        self.given, self.complete = self.given + size, not more

    def cancel(self):
        self.over = self.cancelled = True
        self.lane.end()

    def leave(self):
        """Ends it at the engine."""
        self.left = True
        self.task.cancel()
        self.way.end()


def of_one(condition, **drawn):
    """Makes a rule for one of the streams for which the condition holds."""

    def make(act):
        def of_one(self, data, **more):
            act(self, data.draw(st.sampled_from(self.some(condition))), **more)

        of_one.__name__ = act.__name__
        return precondition(lambda self: self.some(condition))(rule(data=st.data(), **drawn)(of_one))

    return make


class BothHalves(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.failures = []
        self.loop.set_exception_handler(lambda _, context: self.failures.append(context))
        self.wires, self.streams, self.again_at = [], [], 0.0
        self.channels, self.engines = Channels(), EngineChannels()
        self.channels._pool = self

    def call(self, address, relay):
        """Connects, in place of the pool."""
        self.wires.append(Wire(relay))
        return self.wires[-1]

    def close(self):
        """Has no connection that is idle."""

    @property
    def wire(self):
        return self.wires[-1] if self.wires and not self.wires[-1].closed else None

    def some(self, condition):
        return [one for one in self.streams if condition(one)]

    def do(self, call, *arguments, seconds=1e-6):
        """Calls it, and lets both halves do all that they can."""

        async def run():
            call(*arguments)
            await asyncio.sleep(seconds)

        wire = self.wire
        self.loop.run_until_complete(run())
        assert not self.failures
        if wire is not None and wire.closed:
            self.again_at = wire.closed_at + AGAIN_S if wire.may_fail else 0.0

    # The channel.

    @initialize(states=st.lists(STATES, min_size=2, max_size=4))
    def begin_with_streams(self, states):
        self.connect(accepted=True)
        for state in states:
            self.open(1, state)

    @precondition(lambda self: self.wire is None)
    @rule(accepted=st.booleans())
    def connect(self, accepted):
        if self.loop.time() < self.again_at:
            self.do(self.channels.offered, ADDRESS, SERVICE, None)
            assert self.wire is None
            self.do(lambda: None, seconds=self.again_at - self.loop.time())
        self.do(self.channels.offered, ADDRESS, SERVICE, lambda _id: ())
        if accepted:
            self.accept()
            self.deliver([1])

    @precondition(lambda self: self.wire and self.wire.task is None)
    @rule()
    def accept(self):
        self.do(self.wire.accept, self.engines)

    @precondition(lambda self: self.wire)
    @rule(cuts=CUTS)
    def deliver(self, cuts):
        for size in cuts:
            for deliver in ("deliver_up", "deliver_down"):
                if self.wire:
                    self.do(getattr(self.wire, deliver), size)
                    self.an_engine_sends_nothing_of_a_stream_that_waits()

    @precondition(lambda self: self.wire and self.wire.task)
    @rule()
    def block_or_unblock(self):
        writable = self.wire.writable
        self.do(writable.clear if writable.is_set() else writable.set)

    @rule(steps=st.sampled_from([1, 4, 15]))
    def wait(self, steps):
        """Lets time pass, in which all that is sent arrives."""
        for _ in range(steps):
            if self.wire:
                self.do(self.wire.writable.set)
                self.deliver([10**9])
            if self.wire:
                self.wire.may_fail |= not self.wire.answered
            self.do(lambda: None, seconds=5.0)

    @precondition(lambda self: self.wire and len(self.some(lambda one: one.lane.begun and not one.over)) > 1)
    @rule(how=st.sampled_from(["cut", "silent", "drained"]))
    def lose(self, how):
        self.wire.may_fail = True
        if how == "drained":
            self.do(self.wire.engine.close)
            return
        if how == "cut":
            self.do(self.wire.relay.lost, Loss.BROKEN)
        else:
            self.do(lambda: None, seconds=SILENCE_S * 1.25)
        assert self.wire is None

    # Streams.

    @precondition(lambda self: self.wire)
    @rule(count=st.integers(1, 3), state=STATES)
    def open(self, count, state):
        for _ in range(count):
            stream = Stream(self.wire)
            stream.lane = self.channels.lane(ADDRESS, SERVICE, stream)
            assert (stream.lane is not None) == self.wire.answered
            if stream.lane is not None:
                self.streams.append(stream)
                if state != "asked":
                    self.do(stream.answer, self.engines)
                if state == "begun" and stream.way:
                    self.do(lambda one=stream: one.lane.begin(reads=True))

    @of_one(lambda one: one.way is None and not one.wire.closed and not one.cancelled)
    def answer(self, stream):
        self.do(stream.answer, self.engines)

    @of_one(lambda one: one.way and not one.lane.begun and not one.over, reads=st.booleans())
    def begin(self, stream, reads):
        self.do(lambda: stream.lane.begin(reads=reads))

    @of_one(lambda one: one.way and not one.over and not one.complete, size=SIZES, more=MORE, cuts=CUTS)
    def give(self, stream, size, more, cuts):
        self.do(stream.give, size, more)
        self.deliver(cuts)

    @of_one(lambda one: one.lane.begun and not one.over, flags=FLAGS, given=st.booleans(), cuts=CUTS)
    def resume_and_pause(self, stream, flags, given, cuts):
        """The events that it has, and gets then, come only where it was resumed last."""
        self.do(lambda: [stream.lane.resume() if reads else stream.lane.pause() for reads in flags])
        self.deliver(cuts)
        if given and not stream.complete:
            self.do(stream.give, 30, True)
            self.deliver(cuts)

    @of_one(lambda one: not one.over)
    def cancel(self, stream):
        self.do(stream.cancel)

    @of_one(lambda one: one.way and one.over and not one.left)
    def leave(self, stream):
        self.do(stream.leave)

    # What holds.

    @invariant()
    def an_engine_sends_nothing_of_a_stream_that_waits(self):
        for one in self.some(lambda one: one.way):
            if one.wire.may_send(one.lane.number):
                one.stopped_at = None
            elif one.stopped_at is None:
                one.stopped_at = one.sent
            assert one.stopped_at in (None, one.sent)

    @invariant()
    def nothing_is_kept_of_streams_that_ended(self):
        for wire in self.wires:
            here = self.some(lambda one, wire=wire: one.wire is wire)
            running = {one.lane.number for one in here if not one.over}
            assert set(wire.relay._lanes) == running
            assert not wire.closed or not running
            if wire.engine is not None:
                at_work = [one for one in here if one.way and not one.left]
                assert set(wire.engine._lanes) <= {one.lane.number for one in at_work}
                assert sum(map(len, wire.engine._unwritten)) <= (len(here) + 1) * (MAX_FRAME_BYTES + 2 * FRAME.size)
            assert set(wire.relay._cancelled) <= {one.lane.number for one in here if one.cancelled}
            assert len(wire.relay._rest) < FRAME.size + MAX_FRAME_BYTES
            assert wire.relay._commands == []

    @invariant()
    def a_channel_is_opened_in_time_or_given_up(self):
        assert not self.wire or self.wire.answered or self.loop.time() < self.wire.begun_at + OPEN_WITHIN_S + 0.1

    def teardown(self):
        try:
            self.end()
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0.1))
            self.loop.close()

    def end(self):
        for one in self.some(lambda one: one.way is None and not one.over):
            self.do(one.answer, self.engines)
        for one in self.some(lambda one: not one.over):
            if not one.lane.begun:
                self.do(lambda one=one: one.lane.begin(reads=True))
        for one in self.some(lambda one: not one.over):
            self.do(one.lane.resume)
        for one in self.some(lambda one: one.way and not one.left):
            if one.over:
                self.do(one.leave)
            elif not one.complete:
                self.do(one.give, 1, False)
        for _ in range(20):
            if self.wire:
                self.do(self.wire.writable.set)
                self.deliver([10**9])
        self.nothing_is_kept_of_streams_that_ended()
        assert not self.some(lambda one: not one.over)
        for wire in self.wires:
            assert wire.closed or not wire.relay._cancelled
        self.do(self.channels.close)
        self.do(lambda: None, seconds=1.0)
        assert self.engines._open == self.channels._of == {}
        for task in [one.task for one in [*self.wires, *self.streams] if one.task]:
            assert task.cancelled() or task.result() is None


TestBothHalves = BothHalves.TestCase
TestBothHalves.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


class Reader:
    """A stream's receiver. Attributes: size: bytes that came. ends: how it ended."""

    def __init__(self):
        self.size, self.ends = 0, []

    def data(self, data):
        self.size += len(data)

    def ended(self):
        self.ends.append(None)

    def lost(self, loss):
        self.ends.append(loss)


@pytest.fixture
def relay(monkeypatch):
    """The relay's half; its connections are of the test."""
    relay = Channels()
    relay.wires = []
    monkeypatch.setattr(relay._pool, "call", lambda _, channel: relay.wires.append(Wire(channel)) or relay.wires[-1])
    return relay


def offer(relay):
    relay.offered(ADDRESS, SERVICE, lambda _id: ())
    return relay.wires[-1].relay


def opened(relay, count):
    """Returns a channel, and streams in it that began."""
    channel = offer(relay)
    channel.head(200, [])
    lanes = [relay.lane(ADDRESS, SERVICE, Reader()) for _ in range(count)]
    for lane in lanes:
        lane.begin(reads=True)
    return channel, *lanes


def send(channel, lane, size):
    for length in [MAX_FRAME_BYTES] * (size // MAX_FRAME_BYTES) + [size % MAX_FRAME_BYTES]:
        if length:
            channel.data(FRAME.pack(lane.number, length) + bytes(length))


@in_virtual_time
async def test_a_channel_that_is_not_opened_is_given_up_and_asked_for_again_later(relay):
    offer(relay)
    await asyncio.sleep(OPEN_WITHIN_S - 0.1)
    assert not relay.wires[0].closed
    await asyncio.sleep(0.2)
    assert relay.wires[0].closed
    await asyncio.sleep(AGAIN_S - 0.2)
    offer(relay)
    assert len(relay.wires) == 1
    await asyncio.sleep(0.2)
    offer(relay)
    assert len(relay.wires) == 2


@in_virtual_time
async def test_a_stream_that_waits_is_lost_alone_where_it_brings_more_than_is_under_way(relay):
    channel, one, other = opened(relay, 2)
    one.pause()
    send(channel, one, MAX_UNREAD_BYTES)
    assert (one.reader.size, one.reader.ends) == (MAX_UNREAD_BYTES, [])
    send(channel, one, 1)
    assert (one.reader.size, one.reader.ends) == (MAX_UNREAD_BYTES, [Loss.GARBLED])
    send(channel, other, 1)
    assert (other.reader.size, other.reader.ends, relay.wires[0].closed) == (1, [], False)


@in_virtual_time
async def test_a_channel_fails_where_a_cancelled_stream_brings_more_than_is_under_way(relay):
    channel, one, other = opened(relay, 2)
    one.end()
    send(channel, one, MAX_UNREAD_BYTES)
    assert (other.reader.ends, relay.wires[0].closed) == ([], False)
    send(channel, one, 1)
    assert (one.reader.ends, other.reader.ends, relay.wires[0].closed) == ([], [Loss.BROKEN], True)
    assert one.reader.size == 0


@in_virtual_time
async def test_a_stream_that_ended_before_its_head_leaves_nothing(relay):
    channel, _ = opened(relay, 1)
    lane = relay.lane(ADDRESS, SERVICE, Reader())
    channel.data(FRAME.pack(lane.number, 0))
    lane.begin(reads=True)
    relay.close()
    assert lane.reader.ends == [None]


@in_virtual_time
async def test_a_reader_that_fails_at_its_end_is_lost_alone(relay):
    channel, one, other = opened(relay, 2)

    def ended():
        raise ValueError

    one.reader.ended = ended
    channel.data(FRAME.pack(one.number, 0) + FRAME.pack(other.number, 1) + b"x")
    assert (one.reader.ends, other.reader.size, other.reader.ends) == ([Loss.BROKEN], 1, [])
    assert not relay.wires[0].closed

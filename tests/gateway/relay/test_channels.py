"""Streams whose events come in a channel: what the client gets is the same, also where streams, channels and engines
end."""

from __future__ import annotations

import asyncio
import json

import pytest

from inflight_contract.channels import FRAME
from inflight_gateway.relay import channels as channels_module
from tests.gateway.relay.conftest import Setup, eventually
from tests.gateway.relay.fake_engine import Do, FakeEngine
from tests.gateway.relay.test_continue import STREAM, WHOLE, same


class Offering(FakeEngine):
    def __init__(self) -> None:
        super().__init__()
        self.offers = True


async def opened(setup: Setup, engines: int = 1) -> Setup:
    """Waits until the relay has a channel to each engine."""
    for _ in range(10 * engines):
        if len(setup.engine.channels) == engines:
            break
        await setup.post(STREAM)
        await asyncio.sleep(0.02)
    await eventually(lambda: len(setup.engine.channels) == engines, 10)
    await eventually(lambda: all(each._open for each in setup.shared.channels._of.values()))
    setup.engine.seen.clear()
    return setup


@pytest.fixture
async def relay(make) -> Setup:
    return await opened(await make(engine=Offering(), engines=1))


async def hanging(relay: Setup, count: int = 1) -> list[asyncio.Task]:
    """Begins streams that stop on their way; later ones do not."""
    relay.script(*[Do(hang=400)] * count, Do())
    streams = [asyncio.create_task(relay.post(STREAM)) for _ in range(count)]
    await eventually(lambda: len(relay.engine.seen) == count)
    await asyncio.sleep(0.1)
    return streams


def channel(relay: Setup):
    (only,) = relay.engine.channels.values()
    return only


def in_channel(relay: Setup, number: int = -1) -> bool:
    return "x-inflight-channel" in relay.engine.seen[number].headers


@pytest.mark.parametrize("split", [0, 1, 7, 200])
async def test_a_stream_in_a_channel_is_the_same(relay, split):
    relay.script(Do(split=split))
    _, _, body = await relay.post(STREAM)
    assert in_channel(relay)
    assert same(body, STREAM)


async def test_many_streams_share_a_channel_and_their_connections_are_used_again(relay):
    relay.script(Do(split=30))
    for _ in range(3):
        bodies = await asyncio.gather(*(relay.post(STREAM) for _ in range(20)))
        assert all(same(body, STREAM) for _, _, body in bodies)
    assert all(in_channel(relay, number) for number in range(60))
    assert len(relay.engine.opened) == 1
    assert relay.engine.connections <= 1 + 20 + 1


async def test_a_whole_answer_has_no_channel(relay):
    status, _, _ = await relay.post(WHOLE)
    assert status == 200
    assert not in_channel(relay)


async def test_clients_neither_see_channels_nor_name_them(relay):
    name = next(iter(relay.engine.channels))
    _, headers, _ = await relay.post(WHOLE, headers={"x-inflight-channel": f"{name} 1"})
    assert not in_channel(relay)
    assert "x-inflight-channel" not in headers


async def test_an_engine_without_channels_is_asked_for_none(make):
    relay = await make(engines=1)
    for _ in range(3):
        assert same((await relay.post(STREAM))[2], STREAM)
    assert relay.engine.opened == []


async def test_an_engine_that_opens_no_channel_is_not_asked_again_at_once(make):
    engine = Offering()
    engine.refuses_channels = True
    relay = await make(engine=engine, engines=1)
    for _ in range(5):
        assert same((await relay.post(STREAM))[2], STREAM)
    assert len(engine.opened) == 1


async def test_a_request_for_a_channel_that_is_gone_is_answered_on_its_connection(relay):
    relay.engine.channels.clear()
    assert same((await relay.post(STREAM))[2], STREAM)
    assert in_channel(relay)
    relay.engine.channels["gone"] = None  # deleted by the end of the channel


@pytest.mark.parametrize("cut", range(0, 700, 90))
async def test_a_stream_goes_on_elsewhere_where_its_connection_is_cut(make, cut):
    relay = await opened(await make(engine=Offering(), engines=2))
    relay.script(Do(cut=cut), Do())
    _, _, body = await relay.post(STREAM)
    assert same(body, STREAM)
    assert len(relay.engine.seen) == 2


async def test_streams_of_a_channel_that_is_cut_go_on(relay):
    streams = await hanging(relay, 8)
    channel(relay).writer.transport.abort()
    for _, _, body in await asyncio.gather(*streams):
        assert same(body, STREAM)
    assert all(seen.cancelled.is_set() for seen in relay.engine.seen[:8])


async def test_a_client_that_leaves_ends_its_stream_alone(relay):
    (leaving,) = await hanging(relay)
    leaving.cancel()
    await asyncio.wait_for(relay.engine.seen[0].cancelled.wait(), 60)
    assert same((await relay.post(STREAM))[2], STREAM)
    assert len(relay.engine.channels) == 1


async def test_a_client_that_does_not_read_stops_its_stream_and_no_other(relay):
    events = b':t 0 7\ndata: {"created":5,"x":"' + b"y" * 20_000 + b'"}\n\n'
    relay.script(Do(frames=events * 400, split=len(events), hang=10**9), Do())
    reader, writer = await asyncio.open_unix_connection(str(relay.socket), limit=2**16)
    body = json.dumps({**STREAM, "max_tokens": 500}).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: svc.ns\r\n")
    writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
    await eventually(lambda: any(not reads for _, reads in channel(relay).commands))
    assert same((await relay.post(STREAM))[2], STREAM)
    got = b""
    while got.count(b'"created"') < 400:
        got += await asyncio.wait_for(reader.read(2**16), 60)
    writer.transport.abort()


HOSTILE = {
    "unknown stream": FRAME.pack(10**6, 3) + b"abc",
    "end of an unknown stream": FRAME.pack(10**6, 0),
    "giant length": FRAME.pack(1, 2**31),
    "a body of stream 0": FRAME.pack(0, 1) + b"x",
    "signs of life": FRAME.pack(0, 0) * 1000,
    "ends": FRAME.pack(1, 0) * 1000,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
async def test_what_a_channel_may_not_have_ends_it_and_its_streams_go_on(relay, data):
    (stream,) = await hanging(relay)
    channel(relay).raw(data)
    assert same((await stream)[2], STREAM)
    assert relay.shared.channels._of == {}
    assert not in_channel(relay)
    assert relay.shared.kept.size == 0


async def test_events_after_the_end_of_a_stream_end_the_channel(relay):
    await relay.post(STREAM)
    number = int(relay.engine.seen[-1].headers["x-inflight-channel"].split()[1])
    await eventually(lambda: not relay.shared.channels._of[relay.engine.addresses[0]]._cancelled)
    channel(relay).put(number, b":h\n\n")
    await eventually(lambda: relay.shared.channels._of == {})
    assert same((await relay.post(STREAM))[2], STREAM)


async def test_a_cancelled_stream_may_not_go_on_for_ever(relay, monkeypatch):
    monkeypatch.setattr(channels_module, "MAX_UNREAD_BYTES", 100_000)
    (leaving,) = await hanging(relay)
    leaving.cancel()
    await asyncio.wait_for(relay.engine.seen[0].cancelled.wait(), 60)
    number = int(relay.engine.seen[0].headers["x-inflight-channel"].split()[1])
    for _ in range(3):
        channel(relay).put(number, b"x" * 50_000)
    await eventually(lambda: relay.shared.channels._of == {})


async def test_events_before_the_engine_was_let_send_are_none(make):
    """A head beside the channel comes later than events that do not wait for it."""
    relay = await opened(await make(engine=Offering(), engines=1))
    relay.script(Do(pause_s=0.3), Do())
    stream = asyncio.create_task(relay.post(STREAM))
    await eventually(lambda: len(relay.engine.seen) == 1)
    channel(relay).put(int(relay.engine.seen[0].headers["x-inflight-channel"].split()[1]), b":h\n\n")
    assert same((await stream)[2], STREAM)
    assert relay.shared.channels._of == {}


async def test_an_idle_channel_is_closed_and_opened_again(relay, monkeypatch):
    only = relay.shared.channels._of[relay.engine.addresses[0]]
    only._used_at -= channels_module.IDLE_S
    only._close_idle()
    await eventually(lambda: not relay.engine.channels)
    assert same((await relay.post(STREAM))[2], STREAM)
    await eventually(lambda: len(relay.engine.channels) == 1)

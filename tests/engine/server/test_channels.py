"""Channels to relays: which streams come in them, when, and what ends with them. Relays: tests/gateway/relay."""

import asyncio
import json

import pytest

from inflight_contract.channels import CHANNEL_PATH, COMMAND, FRAME, MAX_FRAME_BYTES
from inflight_engine.server.answers import channels
from inflight_engine.server.answers.send import keep_server_send
from tests.base.virtual_time import in_virtual_time
from tests.engine.server.fake_engine import until
from tests.engine.server.relay_model import frames

pytestmark = pytest.mark.usefixtures("virtual_clock")

NAME = "0123456789abcdef" * 2


class Posted:
    """A request of an ASGI client. Attributes: status, headers, body: of its answer so far. more: gives its body."""

    def __init__(self, fake, path, body=None, **headers):
        self.status, self.headers, self.body, self.ended, self.blocked = 0, {}, b"", False, asyncio.Event()
        self.blocked.set()
        self.more: asyncio.Queue = asyncio.Queue()
        if body is not None:
            self.more.put_nowait({"type": "http.request", "body": json.dumps(body).encode(), "more_body": False})
        names = {"content-type": "application/json", **headers}
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in names.items()]
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": raw}
        scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http", "client": ("c", 1), "server": ("s", 80)}
        self.task = asyncio.create_task(fake.app(scope, self.more.get, self._send))

    def command(self, number, reads):
        self.more.put_nowait({"type": "http.request", "body": COMMAND.pack(number, reads), "more_body": True})

    def leave(self):
        self.more.put_nowait({"type": "http.disconnect"})

    async def _send(self, message):
        await self.blocked.wait()
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.body += message["body"]
            self.ended |= not message.get("more_body", False)

    @property
    def parts(self):
        """Parts of each stream in a channel, and a None at its end."""
        found, at = {}, 0
        while at < len(self.body):
            number, length = FRAME.unpack_from(self.body, at)
            at += FRAME.size + length
            found.setdefault(number, []).append(self.body[at - length : at] if length else None)
        return found


def opened(fake, name=NAME):
    return Posted(fake, CHANNEL_PATH, x_inflight_channel=name)


def stream(fake, number, name=NAME, **more):
    asked = {"prompt": "hello", "stream": True, "temperature": 0, **more}
    return Posted(fake, "/v1/completions", asked, x_inflight_progress="1", x_inflight_channel=f"{name} {number}")


async def opened_with_a_stream(fake):
    """A channel, and stream 1 in it, both answered."""
    channel = opened(fake)
    await until(lambda: channel.status)
    client = stream(fake, 1)
    await until(lambda: client.status)
    return channel, client


@in_virtual_time
async def test_the_head_says_where_events_come_and_that_there_are_channels(make_fake):
    fake = await make_fake()
    plain = Posted(fake, "/v1/completions", {"prompt": "a", "stream": True}, x_inflight_progress="1")
    unknown = stream(fake, 1)
    await until(lambda: plain.status and unknown.status)
    assert plain.headers[b"x-inflight-channel"] == unknown.headers[b"x-inflight-channel"] == b"0"
    assert unknown.body
    channel = opened(fake)
    await until(lambda: channel.status)
    assert channel.status == 200
    client, twice = stream(fake, 7), stream(fake, 7)
    await until(lambda: client.status and twice.status)
    assert client.headers[b"x-inflight-channel"] == b"7"
    assert twice.headers[b"x-inflight-channel"] == b"0"
    for each in (plain, unknown, client, twice, channel):
        each.leave()
        await each.task


@in_virtual_time
async def test_an_engine_with_api_keys_offers_no_channels(make_fake):
    """A relay has the keys of its requests only, and would ask again each minute."""
    fake = await make_fake(api_key=("key",))
    asked = {"prompt": "a", "stream": True}
    client = Posted(fake, "/v1/completions", asked, x_inflight_progress="1", authorization="Bearer key")
    channel = opened(fake)
    await until(lambda: client.status and channel.status)
    assert (client.status, channel.status) == (200, 401)
    assert b"x-inflight-progress" in client.headers
    assert b"x-inflight-channel" not in client.headers
    for each in (client, channel):
        each.leave()
        await each.task


@in_virtual_time
async def test_nothing_comes_before_the_relay_reads_and_nothing_while_it_does_not(make_fake):
    fake = await make_fake()
    channel, client = await opened_with_a_stream(fake)
    await asyncio.sleep(3)
    assert channel.body == client.body == b""
    channel.command(1, 1)
    await until(lambda: channel.body)
    assert frames(channel.parts[1][0].decode()) == [(["h"], None)]
    channel.command(1, 0)
    await asyncio.sleep(1)
    before = channel.body
    await asyncio.sleep(10)
    assert channel.body.count(b":h") <= before.count(b":h") + 1
    channel.command(1, 1)
    await until(lambda: len(channel.body) > len(before))
    client.leave()
    await client.task
    await until(lambda: channel.parts[1][-1] is None)
    assert client.body == b""
    channel.leave()
    await channel.task


@in_virtual_time
async def test_nothing_comes_of_a_stream_that_is_told_to_send_and_to_wait_at_once(make_fake):
    fake = await make_fake()
    channel, client = await opened_with_a_stream(fake)
    await asyncio.sleep(3)
    channel.command(1, 1)
    channel.command(1, 0)
    await asyncio.sleep(3)
    assert channel.body == b""
    for each in (client, channel):
        each.leave()
        await each.task


@in_virtual_time
async def test_a_channel_that_ends_takes_no_response_with_it(make_fake):
    fake = await make_fake()
    channel, client = await opened_with_a_stream(fake)
    channel.leave()
    await channel.task
    assert fake.service.channels._open == {}
    await asyncio.sleep(3)
    assert not client.task.done()
    client.leave()
    await client.task
    assert fake.service.registry.load().waiting == 0


@in_virtual_time
async def test_a_client_that_leaves_while_its_stream_waits_leaves_nothing_behind(make_fake):
    fake = await make_fake()
    channel, client = await opened_with_a_stream(fake)
    await asyncio.sleep(2)
    client.leave()
    await asyncio.wait_for(client.task, 5)
    assert fake.service.registry.load().waiting == 0
    fake.service.channels.close()
    await channel.task
    assert channel.ended


@in_virtual_time
async def test_channels_are_bounded_and_named_by_secrets(make_fake, monkeypatch):
    fake = await make_fake()
    for name, status in (("", 400), ("x" * 32, 400), (NAME[:-1], 400)):
        refused = opened(fake, name)
        await refused.task
        assert refused.status == status
    monkeypatch.setattr(channels, "MAX_CHANNELS", 1)
    channel = opened(fake)
    await until(lambda: channel.status)
    again, other = opened(fake), opened(fake, NAME[::-1])
    await again.task
    await other.task
    assert (channel.status, again.status, other.status) == (200, 409, 503)
    channel.leave()
    await channel.task


@in_virtual_time
async def test_an_idle_channel_says_that_it_lives(make_fake):
    fake = await make_fake()
    channel = opened(fake)
    await asyncio.sleep(2.5 * channels.BEAT_SECONDS)
    assert channel.body == FRAME.pack(0, 0) * 2
    channel.leave()
    await channel.task


@in_virtual_time
async def test_long_events_come_in_parts_between_those_of_others():
    sent: list[bytes] = []

    async def own(message):
        assert message["body"] == b""

    async def send(message):
        if message["type"] == "http.response.body":
            sent.append(message["body"])
        await asyncio.sleep(0.1)

    async def receive():
        await asyncio.sleep(1000)

    channel = channels.Channels().open(NAME)
    scope = {"type": "http"}
    keep_server_send(scope, send)
    running = asyncio.create_task(channel(scope, receive, send))
    long, short = channel.lane(1, own), channel.lane(2, own)
    long.reads.set()
    short.reads.set()
    message = {"type": "http.response.body", "more_body": True}
    writing = asyncio.create_task(long.send({**message, "body": b"x" * 10 * MAX_FRAME_BYTES}))
    await asyncio.sleep(0.01)
    await short.send({**message, "body": b"token"})
    await writing
    channel.close()
    await running
    stream = b"".join(sent)
    assert max(map(len, sent)) <= 2 * (MAX_FRAME_BYTES + FRAME.size) + 5 + FRAME.size
    assert stream.index(b"token") < 4 * MAX_FRAME_BYTES
    assert stream.count(b"x") == 10 * MAX_FRAME_BYTES


@in_virtual_time
async def test_a_server_that_ends_ends_its_channels_at_once_and_opens_no_more(make_fake):
    fake = await make_fake()
    channel = opened(fake)
    await until(lambda: channel.status)
    await asyncio.sleep(1.0)
    begin = asyncio.get_running_loop().time()
    fake.app.state.service.channels.close()
    await channel.task
    assert channel.ended is True
    assert asyncio.get_running_loop().time() - begin < 0.1
    later = opened(fake, NAME[::-1])
    await later.task
    assert later.status == 503

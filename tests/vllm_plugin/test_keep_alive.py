"""Comments in silent streams."""

import asyncio

from inflight_vllm.keep_alive import COMMENT, KeptAlive
from tests.base.virtual_time import in_virtual_time

SILENCE = 0.02
STREAM = {"type": "http.response.start", "headers": [(b"Content-Type", b"text/event-stream; charset=utf-8")]}
JSON = {"type": "http.response.start", "headers": [(b"content-type", b"application/json")]}


class Client:
    """Takes messages; holds the next one while `open` is not set."""

    def __init__(self):
        self.bodies = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, message):
        await self.open.wait()
        if message["type"] == "http.response.body":
            self.bodies.append(message["body"])


def event(text, *, more=True):
    return {"type": "http.response.body", "body": text, "more_body": more}


def begun():
    """Returns a client and what keeps its stream alive."""
    client = Client()
    return client, KeptAlive(client.send, SILENCE)


@in_virtual_time
async def test_a_stream_begins_with_a_comment_so_that_a_hang_before_any_silence_is_noticed_as_soon():
    client, kept = begun()
    await kept(STREAM)
    await kept(event(b"a", more=False))
    assert client.bodies == [COMMENT, b"a"]


@in_virtual_time
async def test_a_comment_follows_each_time_of_silence():
    client, kept = begun()
    await kept(STREAM)
    await asyncio.sleep(2.5 * SILENCE)
    await kept(event(b"a"))
    assert client.bodies == [COMMENT] * 3 + [b"a"]


@in_virtual_time
async def test_nothing_follows_the_end():
    client, kept = begun()
    await kept(STREAM)
    await kept(event(b"a", more=False))
    await asyncio.sleep(4 * SILENCE)
    assert client.bodies == [COMMENT, b"a"]


@in_virtual_time
async def test_a_stop_ends_the_comments():
    client, kept = begun()
    await kept(STREAM)
    kept.stop()
    await asyncio.sleep(4 * SILENCE)
    assert client.bodies == [COMMENT]


@in_virtual_time
async def test_only_event_streams_get_comments():
    client, kept = begun()
    await kept(JSON)
    await asyncio.sleep(4 * SILENCE)
    await kept(event(b"{}", more=False))
    assert client.bodies == [b"{}"]


@in_virtual_time
async def test_a_client_that_does_not_read_gets_no_more_comments_and_all_messages_in_order():
    client, kept = begun()
    await kept(STREAM)
    client.open.clear()
    await asyncio.sleep(6 * SILENCE)  # one comment is on its way
    messages = asyncio.create_task(kept(event(b"a")))
    await asyncio.sleep(6 * SILENCE)
    assert client.bodies == [COMMENT]
    client.open.set()
    await messages
    await kept(event(b"b", more=False))
    assert client.bodies == [COMMENT, COMMENT, b"a", b"b"]

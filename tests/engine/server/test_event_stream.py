"""Events are written at once while the client reads; while it does not, what is new is joined and written later."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from inflight_engine.request import FinishReason
from inflight_engine.server.answers.writer import AnswerFormat, AnswerWriter
from inflight_engine.server.requests.generation import Piece
from tests.base.virtual_time import in_virtual_time
from tests.engine.server.fake_engine import until

pytestmark = pytest.mark.usefixtures("virtual_clock")


class Choice:
    """A stand-in for a generation: `text` is what it has to send."""

    error, request = None, SimpleNamespace(num_reported=0)

    def __init__(self):
        self.text, self.done = "", False

    def take(self):
        text, self.text = self.text, ""
        return Piece(text, [])


class Plain(AnswerFormat):
    """Writes text as it is."""

    def whole(self, pieces):
        raise AssertionError("streams only")

    def first(self):
        return b"<"

    def piece(self, choice, piece):
        return piece.text.encode()

    def last(self, choice, piece):
        return b"|"

    def end(self):
        return b">"


class Client:
    """`sent`: bodies. While `reads` is not set, `send` waits before it returns; it raises `error`, if there is one."""

    def __init__(self):
        self.sent, self.more, self.error, self.reads = [], True, None, asyncio.Event()
        self.reads.set()

    async def send(self, message):
        if message["type"] == "http.response.body":
            self.sent.append(message["body"])
            self.more = message["more_body"]
            await self.reads.wait()
        if self.error is not None:
            raise self.error


def make():
    choice, client = Choice(), Client()

    class Call(SimpleNamespace):
        error, abandoned, relayed, streaming, choices, blocks = None, False, False, True, [choice], b""

    return choice, client, AnswerWriter(Call(), Plain(), client.send, client.send)


def say(stream, choice, text, *, done=False):
    choice.text += text
    choice.done = done
    stream.write([choice])


@in_virtual_time
async def test_what_can_be_sent_is_sent_before_write_returns():
    choice, client, stream = make()
    say(stream, choice, "a")
    say(stream, choice, "b")
    assert client.sent == [b"<a", b"b"]
    assert not stream.complete.done()
    say(stream, choice, "c", done=True)
    assert client.sent[2:] == [b"c|>data: [DONE]\n\n"]
    assert stream.complete.result() is None
    assert not client.more


@in_virtual_time
async def test_what_is_new_while_the_client_does_not_read_is_written_together():
    choice, client, stream = make()
    client.reads.clear()
    for text in "abc":
        say(stream, choice, text)
    await asyncio.sleep(0.01)
    assert client.sent == [b"<a"]
    client.reads.set()
    await asyncio.sleep(0.01)
    assert client.sent == [b"<a", b"bc"]
    say(stream, choice, "d", done=True)
    await stream.complete
    assert client.sent[2:] == [b"d|>data: [DONE]\n\n"]


@in_virtual_time
async def test_the_end_may_come_while_the_client_does_not_read():
    choice, client, stream = make()
    client.reads.clear()
    say(stream, choice, "a")
    say(stream, choice, "b", done=True)
    client.reads.set()
    await stream.complete
    assert b"".join(client.sent) == b"<ab|>data: [DONE]\n\n"


@pytest.mark.parametrize("waits", [False, True])
@in_virtual_time
async def test_a_send_that_fails_fails_the_answer(waits):
    choice, client, stream = make()
    if waits:
        client.reads.clear()
    client.error = OSError("gone")
    say(stream, choice, "a")
    client.reads.set()
    with pytest.raises(OSError, match="gone"):
        await stream.complete
    say(stream, choice, "b")
    assert len(client.sent) <= 1


@in_virtual_time
async def test_tokens_whose_reports_are_read_together_are_one_event(make_fake):
    fake = await make_fake()
    asking = asyncio.create_task(fake.post("/v1/completions", prompt="hi", stream=True))
    await until(lambda: fake.engine.requests)
    (request_id,) = fake.engine.requests
    fake.engine.report(admitted=[(request_id, 0)])
    for token in b"abc":
        fake.engine.report(tokens={0: token})
    await until(lambda: fake.service.counts.generation_tokens == 3)
    await asyncio.sleep(0.01)
    fake.engine.report(tokens={0: ord("d")}, finished=[(request_id, FinishReason.LENGTH)])
    events = [json.loads(line[6:]) for line in (await asking).text.splitlines() if line.startswith("data: {")]
    assert [event["choices"][0]["text"] for event in events] == ["abc", "d", ""]

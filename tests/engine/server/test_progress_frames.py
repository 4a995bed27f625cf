"""Progress frames: what is written when, beside the answer. That cut answers go on is in test_continuation.py."""

import asyncio
import json
import re
from itertools import pairwise
from types import SimpleNamespace

import httpx
import pytest

from inflight_contract.errors import ApiError
from inflight_engine.messages import Starting
from inflight_engine.request import FinishReason
from inflight_engine.server.answers import writer
from inflight_engine.server.answers.respond import _ROUNDS as ROUNDS
from inflight_engine.server.answers.respond import Heartbeats
from inflight_engine.server.engine.session import Progress
from inflight_settings.engine import EngineConfig
from tests.base.virtual_time import in_virtual_time
from tests.engine.server.fake_engine import until
from tests.engine.server.relay_model import Choice, Kept, frames
from tests.engine.server.test_requests import events, metrics, start
from tests.engine.server.test_restart import die, error_of, restart

pytestmark = pytest.mark.usefixtures("virtual_clock")

HEADERS = {"x-inflight-progress": "1"}


class Written:
    """An ASGI client that keeps what is sent when it is sent. Attributes: times: of the parts of the body."""

    def __init__(self, app, path, body, headers=HEADERS):
        self.head, self.text, self.times, self.left = None, "", [], asyncio.Event()
        self._body = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        names = {**headers, "content-type": "application/json"}
        headers = [(name.encode(), value.encode()) for name, value in names.items()]
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers}
        scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http", "client": ("c", 1), "server": ("s", 80)}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    @property
    def frames(self):
        return frames(self.text)

    async def _receive(self):
        if self._body:
            return self._body.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if message["type"] == "http.response.start":
            self.head = message
        else:
            self.text += message["body"].decode()
            self.times.append(asyncio.get_running_loop().time())


def relayed(fake, path="/v1/completions", headers=(), **body):
    return Written(fake.app, path, {"prompt": "hello", **body}, {**HEADERS, **dict(headers)})


def post(fake, path="/v1/completions", **body):
    return asyncio.create_task(fake.http.post(path, json={"prompt": "hello", **body}, headers=HEADERS))


@pytest.mark.parametrize("stream", [True, False])
@in_virtual_time
async def test_the_head_comes_when_the_request_is_in_the_queue(make_fake, stream):
    fake = await make_fake()
    client = relayed(fake, stream=stream, temperature=0)
    await until(lambda: client.text)
    assert fake.service.registry.load().waiting == 1
    headers = dict(client.head["headers"])
    assert client.head["status"] == 200
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"x-inflight-progress"] == b"1"
    assert client.frames == [(["h"], None)]
    client.left.set()
    await client.task


@in_virtual_time
async def test_what_fails_before_the_queue_is_an_ordinary_response(make_fake):
    fake = await make_fake(max_queued_requests=1)
    first = await post(fake, temperature=3)
    assert error_of(first)[0] == 400
    call = start(fake)
    await until(lambda: fake.engine.requests)
    full = await post(fake)
    assert error_of(full) == (503, "queue_full")
    for refused in (first, full):
        assert "x-inflight-progress" not in refused.headers
    fake.engine.answer(0, "x")
    await call


@in_virtual_time
async def test_a_request_without_the_header_gets_no_comment(make_fake):
    fake = await make_fake()
    call = start(fake, stream=True, temperature=1)
    await until(lambda: fake.engine.requests)
    fake.engine.answer(0, "abc")
    answer = await call
    assert "x-inflight-progress" not in answer.headers
    assert all(line.startswith("data: ") for line in answer.text.split("\n\n") if line)
    assert len(fake.service.heartbeats) == 0


@in_virtual_time
async def test_a_token_and_its_text_are_in_one_frame_also_when_tokens_are_joined_or_text_is_held_back(make_fake):
    fake = await make_fake()
    client = relayed(fake, stream=True, stop=["yz"], temperature=0)
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0)])
    for tokens, frame in (
        (b"a", ("t 0 97", "a")),
        ("é".encode()[:1], ("t 0 195", None)),
        ("é".encode()[1:] + b"b", ("t 0 169,98", "éb")),
        (b"y", ("t 0 121", None)),
        (b"x", ("t 0 120", "yx")),
    ):
        for token in tokens:
            fake.engine.report(tokens={0: token})
        await until(lambda comment=frame[0]: client.frames[-1][0] == [comment])
        data = client.frames[-1][1]
        assert (None if data is None else json.loads(data)["choices"][0]["text"]) == frame[1]
    fake.engine.report(tokens={0: ord("y")}, finished=[(0, FinishReason.LENGTH)])
    await client.task
    (comments, data), (last, done) = client.frames[-2:]
    assert comments == ["t 0 121", "f 0 length"]
    assert json.loads(data)["choices"][0] | {"logprobs": None} == {
        **{"index": 0, "text": "y", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    }
    assert (last, done) == (['u {"prompt_tokens":5,"cached_tokens":0,"completion_tokens":7}'], "[DONE]")


@in_virtual_time
async def test_an_answer_that_is_not_streamed_comes_as_one_event_at_the_end(make_fake):
    fake = await make_fake()
    client = relayed(fake, temperature=0)
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0)], tokens={0: ord("a")})
    await until(lambda: client.frames[-1] == (["t 0 97"], None))
    fake.engine.report(tokens={0: ord("b")}, finished=[(0, FinishReason.STOP)])
    await client.task
    assert client.frames[-2] == (["t 0 98", "f 0 stop"], None)
    comments, body = client.frames[-1]
    assert comments == ['u {"prompt_tokens":5,"cached_tokens":0,"completion_tokens":2}', "w 200"]
    assert json.loads(body)["choices"][0]["text"] == "ab"


@in_virtual_time
async def test_seeds_that_the_engine_draws_are_told_once(make_fake):
    fake = await make_fake()
    client = relayed(fake, n=2, stream=True, temperature=1)
    await until(lambda: len(fake.engine.requests) == 2 and client.text)
    drawn = [each.sampling.seed for each in fake.engine.requests.values()]
    assert client.frames == [([f"s 0 {drawn[0]}", f"s 1 {drawn[1]}"], None)]
    for request_id in (0, 1):
        fake.engine.answer(request_id, "x", slot=request_id)
    await client.task
    for quiet in ({"seed": 4, "temperature": 1}, {"temperature": 0}):
        client = relayed(fake, stream=True, **quiet)
        await until(lambda client=client: client.text)
        assert client.frames == [(["h"], None)]
        client.left.set()
        await client.task


@in_virtual_time
async def test_a_heartbeat_comes_where_nothing_else_does_and_stops_with_the_engine(make_fake, monkeypatch):
    monkeypatch.setattr("inflight_engine.server.answers.respond._RELAY_PERIOD", 0.2)
    fake = await make_fake()
    client = relayed(fake, stream=True, temperature=0)
    await until(lambda: len(client.frames) >= 4)
    assert {tuple(comments) for comments, _ in client.frames} == {("h",)}
    fake.engine.report(admitted=[(0, 0)])
    for _ in range(20):
        fake.engine.report(tokens={0: ord("a")})
        await asyncio.sleep(0.02)
    assert sum(comments == ["h"] for comments, _ in client.frames[-18:]) <= 1
    fake.service.session.progress = Progress(-100.0)
    count = len(client.frames)
    await asyncio.sleep(0.6)
    assert len(client.frames) - count <= 1
    client.left.set()
    await client.task
    assert len(fake.service.heartbeats) == 0


@pytest.mark.parametrize(("headers", "period"), [({}, 15.0), (HEADERS, 0.9)])
@in_virtual_time
async def test_a_heartbeat_comes_after_a_period_without_a_byte_and_after_each_further_one(make_fake, headers, period):
    fake = await make_fake(request_timeout=100.0)
    client = Written(fake.app, "/v1/completions", {"prompt": "hello", "stream": True, "temperature": 0}, headers)
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0)])
    for _ in range(10):
        await asyncio.sleep(period * 0.77)
        fake.engine.report(tokens={0: ord("a")})
    await asyncio.sleep(period * 4.5)
    gaps = [later - before for before, later in pairwise(client.times[-14:])]
    assert gaps == [pytest.approx(period * 0.77)] * 9 + [pytest.approx(period, rel=0.06)] * 4
    client.left.set()
    await client.task


@in_virtual_time
async def test_one_timer_serves_all_responses_and_none_when_there_are_none():
    class Stream:
        beats, written_at = 0, -1.0

        def beat(self):
            self.beats += 1

    made = Heartbeats(lambda: False, lambda _: None).of(SimpleNamespace(relayed=True))
    streams = [Stream() for _ in range(100)]
    for stream in streams:
        made.add(stream)
    timer = made._timer
    assert sum("_beat" in repr(each) for each in asyncio.get_running_loop()._scheduled) == 1
    timer.cancel()
    made._arm = lambda: None
    for _ in range(ROUNDS):
        made._beat()
    assert {stream.beats for stream in streams} == {1}
    for stream in streams:
        made.remove(stream)
    made._beat()
    assert (len(made), made._timer) == (0, None)


@in_virtual_time
async def test_a_client_that_does_not_read_gets_no_heartbeats_and_joined_tokens_later():
    sent, reads = [], asyncio.Event()

    async def send(message):
        sent.append(message)
        if message["type"] == "http.response.body":
            await reads.wait()

    class Request:
        index, seed_drawn, num_reported = 0, False, 0

    class Generation:
        request, done, error, holds_back, written, token_ids = Request(), False, None, False, False, [1]

        def take(self):
            return writer.NO_PIECE._replace(text="x", num_tokens=len(self.token_ids))

    class Call:
        error, abandoned, relayed, streaming, blocks = None, False, True, True, b""

    class Answer:
        names_tokens = False

        def first(self):
            return b""

        def piece(self, choice, piece):
            return b"data: %d\n\n" % piece.num_tokens

    call, choice = Call(), Generation()
    call.choices = [choice]
    stream = writer.AnswerWriter(call, Answer(), send, send)
    stream.begin()
    for _ in range(5):
        stream.beat()
        choice.token_ids.append(2)
        stream.write([choice])
    assert len(sent) == 2
    reads.set()
    await until(lambda: len(sent) == 3)
    assert sent[2]["body"] == b":t 0 1,2,2,2,2,2\ndata: 6\n\n"


@in_virtual_time
async def test_a_lost_engine_process_asks_for_another_replica_at_once(make_fake):
    fake = await make_fake()
    running, waiting = relayed(fake, stream=True, temperature=0), relayed(fake, temperature=0)
    await until(lambda: len(fake.engine.requests) == 2)
    starting = relayed(fake, temperature=0)
    await until(lambda: len(fake.engine.requests) == 3)
    assert all(each.announce_start for each in fake.engine.requests.values())
    fake.engine.report(admitted=[(0, 0)], tokens={0: ord("a")}, num_running=1)
    await until(lambda: "t 0" in running.text)
    fake.engine.send(Starting([2]))
    await die(fake)
    # Only a request with a slot may be the cause.
    for client, code in (running, "engine_failed"), (waiting, "engine_restarting"), (starting, "engine_failed"):
        await asyncio.wait_for(client.task, 60)
        comments, data = client.frames[-1]
        assert comments == ["e 503 retry"]
        assert json.loads(data)["error"]["code"] == code
    await restart(fake)
    assert not fake.engine.requests
    assert not len(fake.service.registry)


@in_virtual_time
async def test_what_another_replica_would_fail_with_too_is_final(make_fake):
    fake = await make_fake(queue_timeout=0.05)
    late = await post(fake, stream=True)
    assert (late.status_code, frames(late.text)[-1][0]) == (200, ["e 504 final"])
    call = post(fake, n=2, stream=True)
    await until(lambda: len(fake.engine.requests) == 3)
    fake.engine.report(admitted=[(1, 0), (2, 1)], tokens={0: 97}, finished=[(2, FinishReason.ERROR)])
    assert frames((await call).text)[-1][0] == ["e 500 final"]
    call = post(fake)
    await until(lambda: len(fake.engine.requests) == 4)
    fake.service.registry.end_all(ApiError(503, "drained", code="drain_timeout"))
    assert frames((await call).text)[-1][0] == ["e 503 retry"]


CONTINUED = {"choices": [{"token_ids": [97]}], "created": 5}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"choices": [{"token_ids": [1]}] * 2}, "2 choices, and the request asks for 1"),
        ({"choices": [{"token_ids": [1, 256]}]}, "token id 256 is not below the vocabulary size 256"),
        ({"choices": [{"token_ids": [1] * 17}]}, "17 tokens, and max_tokens is 16"),
        ({"choices": [{"token_ids": [-1]}]}, "inflight_continuation.choices.0.token_ids.0"),
        ({"choices": [{"token_ids": [], "finish_reason": "abort"}]}, "finish_reason"),
        ({"choices": [{"token_ids": [], "seed": -1}]}, "seed"),
        ({"choices": []}, "inflight_continuation.choices"),
        ({"created": None}, "created"),
    ],
)
@in_virtual_time
async def test_a_wrong_continuation_is_refused_by_name(make_fake, change, says):
    fake = await make_fake()
    answer = await post(fake, inflight_continuation=CONTINUED | change)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert says in error["message"]
    assert "inflight_continuation" in error["param"]
    assert not len(fake.service.registry)


@in_virtual_time
async def test_a_continuation_without_the_header_is_refused(make_fake):
    fake = await make_fake()
    answer = await start(fake, inflight_continuation=CONTINUED)
    assert answer.status_code == 400
    assert re.search("inflight_continuation: only .* X-Inflight-Progress", answer.json()["error"]["message"])


@in_virtual_time
async def test_a_continued_answer_has_its_time_and_its_id_and_counts_once(make_fake):
    fake = await make_fake()
    call = asyncio.create_task(
        fake.http.post(
            "/v1/completions",
            json={"prompt": "hello", "stream": True, "inflight_continuation": CONTINUED},
            headers={**HEADERS, "x-request-id": "same"},
        )
    )
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0, 6)])
    fake.engine.report(tokens={0: ord("b")}, finished=[(0, FinishReason.LENGTH)])
    kept = Kept([Choice()])
    kept.read(frames((await call).text))
    chunk = json.loads(kept.data[0])
    assert (chunk["created"], chunk["id"], chunk["choices"][0]["text"]) == (5, "cmpl-same", "b")
    assert kept.usage == {"prompt_tokens": 5, "cached_tokens": 5, "completion_tokens": 2}
    seen = await metrics(fake)
    assert (seen["vllm:prompt_tokens_total"], seen["vllm:generation_tokens_total"]) == (5, 1)
    assert seen["inflight_arrived_prompt_tokens_total"] == 6


@in_virtual_time
async def test_an_answer_of_which_only_the_end_is_missing_needs_no_engine(make_fake):
    fake = await make_fake(engine=EngineConfig("fake"))
    complete = {"choices": [{"token_ids": [97], "finish_reason": "length"}], "created": 5}
    answer = await post(fake, stream=True, inflight_continuation=complete)
    assert events(answer.text)[-1].endswith("[DONE]")
    assert [data for _, data in frames(answer.text)] == [None, "[DONE]"]
    whole = await post(fake, inflight_continuation=complete)
    kept = Kept([Choice([97], None, "length")])
    kept.read(frames(whole.text))
    assert kept.whole["choices"][0]["text"] == "a"
    full = await post(fake, max_tokens=1, stream=True, inflight_continuation=CONTINUED)
    (comments, data), _ = frames(full.text)[1:]
    assert (comments, json.loads(data)["choices"][0]["finish_reason"]) == (["f 0 length"], "length")
    assert not fake.engine.requests


@in_virtual_time
async def test_a_client_that_leaves_ends_its_request(make_fake):
    fake = await make_fake()
    client = relayed(fake, stream=True)
    await until(lambda: fake.engine.requests)
    client.left.set()
    await client.task
    await until(lambda: fake.engine.cancels)
    assert isinstance(fake.http, httpx.AsyncClient)
    assert (await metrics(fake))["vllm:num_requests_waiting"] == 0

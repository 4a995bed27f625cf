"""OpenAI Responses, Anthropic Messages, embeddings and scores: streams go on, and errors have the form of their API."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import aiohttp
import pytest

from inflight_base.manifest.engines import EngineType
from inflight_gateway.relay.answers.json_usage import UsageReader
from inflight_gateway.relay.answers.kept import Kept
from tests.gateway.relay.conftest import QUICK, Setup, eventually
from tests.gateway.relay.fake_engine import CREATED, Do, FakeEngine, Seen, token
from tests.gateway.relay.test_waiting import Holding

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
ASKED = {
    RESPONSES: {"model": "m", "stream": True, "max_output_tokens": 5, "seed": 3, "input": "hi"},
    MESSAGES: {"model": "m", "stream": True, "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
}
PATHS = pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
USAGE = {"prompt_tokens": 5, "cached_tokens": 1, "completion_tokens": 5}


def groups(path: str) -> list[tuple[bytes, list[tuple[str, dict]]]]:
    """Notes and events of each frame of an answer with five tokens."""
    ids = [token(3, position) for position in range(5)]
    if path == MESSAGES:
        begin = [("message_start", {"message": {"id": "msg", "usage": {"input_tokens": 4, "output_tokens": 0}}})]
        delta, block = "content_block_delta", [("content_block_start", {"index": 0})]
        ends = [("content_block_stop", {"index": 0})]
        last = [("message_delta", {"usage": {"output_tokens": 5}}), ("message_stop", {})]
    else:
        begin = [("response.created", {"response": {"created_at": CREATED}}), ("response.in_progress", {})]
        delta, block = "response.output_text.delta", [("response.output_item.added", {}), ("response.part.added", {})]
        ends = [("response.output_text.done", {}), ("response.output_item.done", {})]
        last = [("response.completed", {"response": {"usage": USAGE}})]
    frames: list[tuple[bytes, list[tuple[str, dict]]]] = [(b"", [event]) for event in begin]
    for position, number in enumerate(ids):
        note = b":t 0 %d\n" % number
        text = [(delta, {"delta": f" {number}é"})] if position != 2 else []
        frames.append((note, (block if not position else []) + text))
    frames.append((b":f 0 length\n", ends))
    frames.append((b":u " + json.dumps(USAGE).encode() + b"\n", last))
    return frames


def frames_of(path: str, given: dict | None) -> bytes:
    """The frames of the answer, or of its rest."""
    known = given["choices"][0] if given else {"token_ids": [], "finish_reason": None}
    assert known["token_ids"] == [token(3, position) for position in range(len(known["token_ids"]))]
    number, left, sent = 0, len(known["token_ids"]), b""
    for note, events in groups(path):
        skipped = given is not None and (
            not note or (note.startswith(b":f") and known["finish_reason"]) or (note.startswith(b":t") and left > 0)
        )
        left -= note.startswith(b":t")
        if given is not None and not skipped:
            assert given.get("sequence_number") == (number if path == RESPONSES else None), note
            given = {**given, "sequence_number": number + len(events)} if path == RESPONSES else given
        written = []
        for name, fields in events:
            numbered = {"sequence_number": number} if path == RESPONSES else {}
            number += 1
            data = json.dumps({"type": name, **numbered, **fields}, separators=(",", ":"), ensure_ascii=False)
            written.append(f"event: {name}\ndata: {data}\n".encode())
        if not skipped:
            sent += note + b"\r\n".join(written) + b"\n"
    return sent + b"data: [DONE]\n\n"


def undisturbed(path: str) -> bytes:
    lines = frames_of(path, None).replace(b"\r\n", b"\n").split(b"\n")
    events = b"\n".join(line for line in lines if not line.startswith(b":"))
    while b"\n\n\n" in events:
        events = events.replace(b"\n\n\n", b"\n\n")
    return events if path == RESPONSES else events.removesuffix(b"data: [DONE]\n\n")


class Engines(FakeEngine):
    """Engines whose answers are `frames_of`, unless the script has others. Plain ones are cut, too."""

    async def _answer(self, do: Do, seen: Seen, number: int, reader, writer) -> bool:
        if do.frames is None and not do.status:
            do = replace(do, frames=frames_of(seen.target, seen.json.get("inflight_continuation")))
        kept = await super()._answer(do, seen, number, reader, writer)
        return kept and not (do.status and do.cut is not None)


@pytest.fixture
async def relay(make) -> Setup:
    patient = replace(QUICK, limits=replace(QUICK.limits, max_deaths=6))
    return await make(patient, engine=Engines(), max_attempts=6)


@PATHS
async def test_a_stream_passes_without_its_notes(relay, path):
    status, headers, body = await relay.post(ASKED[path], path)
    assert (status, headers["content-type"], body) == (200, "text/event-stream", undisturbed(path))
    assert relay.picker.asked[0].path == path
    report = await relay.report()
    counts = [report[name] for name in ("prompt_tokens", "cached_tokens", "completion_tokens")]
    assert (counts, report["path"]) == ([*USAGE.values()], path)


@PATHS
@pytest.mark.parametrize("split", [0, 7])
async def test_a_cut_at_any_byte_makes_no_difference(relay, path, split):
    for cut in range(0, len(frames_of(path, None)), 1 if not split else 23):
        relay.script(Do(cut=cut, split=split), Do(cut=cut // 2), Do())
        status, _, body = await relay.post(ASKED[path], path)
        assert (status, body) == (200, undisturbed(path)), cut


def told(body: bytes) -> list[tuple[str, dict]]:
    """Names and data of the events of a stream, without comments."""
    events = [event for event in body.decode().split("\n\n") if event and not event.startswith(":")]
    parted = [event.removeprefix("event: ").split("\ndata: ") for event in events]
    return [(name, json.loads(data)) for name, data in parted]


FIRST_TOKEN = {path: frames_of(path, None).index(b"\n\n", frames_of(path, None).index(b":t ")) + 2 for path in ASKED}


@pytest.mark.parametrize("cut", [0, 1, 3])
async def test_a_response_that_cannot_go_on_ends_as_failed(relay, cut):
    """Clients that follow OpenAI's events wait for one that ends the response."""
    await relay.configure(continuation=False)
    end = FIRST_TOKEN[RESPONSES]
    for _ in range(cut):
        end = frames_of(RESPONSES, None).index(b"\n\n", end) + 2
    relay.script(Do(cut=end))
    _, _, body = await relay.post(ASKED[RESPONSES], RESPONSES)
    events = told(body)
    assert [data["sequence_number"] for _, data in events] == [*range(len(events))]
    assert [name for name, _ in events] == [data["type"] for _, data in events]
    (_, error), (name, failed) = events[-2:]
    assert (error["type"], error["code"], error["param"], name) == ("error", "engine_lost", None, "response.failed")
    said = {"code": "engine_lost", "message": error["message"]}
    begun = events[0][1]["response"]
    assert failed["response"] == {**failed["response"], **begun, "status": "failed", "error": said}


async def test_the_begin_of_a_response_that_repeats_a_long_request_is_not_kept(relay):
    """A stream took the memory of its instructions to its end, and 64 MiB of them ended those of others."""
    await relay.configure(continuation=False)
    begin = b'event: response.created\ndata: {"response":{"instructions":"%b"}}\n\n' % (b"x" * 20_000)
    relay.script(Do(frames=begin + frames_of(RESPONSES, None), cut=len(begin) + FIRST_TOKEN[RESPONSES]))
    asked = {**ASKED[RESPONSES], "instructions": "x" * 20_000}
    _, _, body = await relay.post(asked, RESPONSES, headers={"x-request-id": "one"})
    name, failed = told(body)[-1]
    assert (name, failed["response"]["id"], failed["response"]["status"]) == ("response.failed", "resp_one", "failed")
    assert "instructions" not in failed["response"]


async def test_a_response_that_fails_while_it_waits_has_the_fields_of_a_response(make):
    holding = Holding(await make(replace(QUICK, waiting_s=0.01), engine=Engines()))
    waiting = asyncio.create_task(holding.relay.post(ASKED[RESPONSES], RESPONSES, headers={"x-request-id": "one"}))
    await asyncio.sleep(0.1)
    holding.refuse()
    _, _, body = await waiting
    (_, error), (name, failed) = told(body)
    assert (error["sequence_number"], failed["sequence_number"], name) == (0, 1, "response.failed")
    response = failed["response"]
    assert (response["id"], response["model"], response["status"]) == ("resp_one", "m", "failed")
    assert {"object", "created_at", "output", "tools", "tool_choice", "parallel_tool_calls", "error"} <= {*response}


async def test_a_message_that_cannot_go_on_ends_with_anthropics_error(relay):
    await relay.configure(continuation=False)
    relay.script(Do(cut=FIRST_TOKEN[MESSAGES]))
    _, _, body = await relay.post(ASKED[MESSAGES], MESSAGES)
    name, said = told(body)[-1]
    kinds = (said["type"], said["error"]["type"], said["error"]["code"])
    assert (name, *kinds) == ("error", "error", "api_error", "engine_lost")


@pytest.mark.parametrize("body", [b'{"error":{"message":"broken","type":"server_error","code":null}}', b"{}", b"no"])
@PATHS
async def test_an_engines_error_within_a_stream_has_its_words(relay, path, body):
    relay.script(Do(cut=FIRST_TOKEN[path], error=b":e 500 final\ndata: " + body + b"\n\n"))
    _, _, answer = await relay.post(ASKED[path], path)
    message, code = ("broken", "server_error") if b"broken" in body else ("the engine failed", "engine_failed")
    events = told(answer)
    if path == MESSAGES:
        error = {"type": "api_error", "message": message, "code": code}
        assert events[-1] == ("error", {"type": "error", "error": error})
    else:
        failed = events[-1][1]["response"]["error"]
        assert (events[-2][1]["message"], events[-2][1]["code"], failed["message"]) == (message, code, message)


@pytest.mark.parametrize("size", [400_000, 3_000_000])
@PATHS
async def test_a_long_answer_passes_whose_last_events_repeat_it(relay, path, size):
    """Its last frame was refused above 1 MiB."""
    frames, text = frames_of(path, None), json.dumps("x" * size).encode()
    repeated = b'event: a\ndata: {"text":%b}\n\r\nevent: b\ndata: {"part":{"text":%b}}\n' % (text, text)
    many = b":t 0 " + b",".join([b"7"] * (size // 100)) + b"\n\n"
    frames = frames.replace(b":f 0 length\n", many + b":f 0 length\n" + repeated + b"\r\n")
    relay.script(Do(frames=frames, split=100_000))
    length = "max_output_tokens" if path == RESPONSES else "max_tokens"
    status, _, body = await relay.post({**ASKED[path], length: size}, path)
    assert (status, len(body) > 2 * size) == (200, True)
    assert body.replace(repeated.replace(b"\n\r\n", b"\n\n") + b"\n", b"") == undisturbed(path)
    assert (await relay.report())["error"] == ""
    assert relay.shared.kept.size == 0


@pytest.mark.parametrize("size", [100_000, 2_000_000])
async def test_first_events_may_repeat_a_long_request(relay, size):
    asked = {**ASKED[RESPONSES], "instructions": "x" * size}
    begin = b'event: response.created\ndata: {"response":{"created_at":1,"instructions":"%b"}}\n\n' % (b"x" * size)
    frames = begin * 2 + frames_of(RESPONSES, None)
    relay.script(Do(frames=frames))
    status, _, body = await relay.post(asked, RESPONSES)
    assert (status, body) == (200, begin * 2 + undisturbed(RESPONSES))


SCORE = b'"12345":{"logprob":-12.345678901234567,"rank":12345,"decoded_token":" tokens"}'


@pytest.mark.parametrize("asked", [{"prompt_logprobs": 20}, {"echo": True, "logprobs": 20}])
async def test_the_log_probabilities_of_a_prompt_come_with_the_first_token_of_a_stream(relay, asked):
    """More than 1 MiB before a token was refused."""
    scores = b",".join([SCORE] * 21 * 1000)
    frames = b':t 0 7\ndata: {"created":5,"prompt_logprobs":[{%b}]}\n\n:f 0 length\n\ndata: [DONE]\n\n' % scores
    body = {"model": "m", "prompt": "four " * 1000, "max_tokens": 1, "stream": True}
    relay.script(Do(frames=frames, split=100_000))
    status, _, answer = await relay.post({**body, **asked}, "/v1/completions")
    assert (status, answer.count(SCORE)) == (200, 21_000)
    # Not where nothing of it was asked for.
    relay.script(Do(frames=frames, split=100_000))
    assert (await relay.post(body, "/v1/completions"))[0] == 502


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [(MESSAGES, 400, "invalid_request_error"), (f"{MESSAGES}/batches", 404, "not_found_error")],
)
async def test_errors_of_the_gateway_have_anthropics_form_on_its_paths(relay, path, status, kind):
    async with relay.session.post(f"http://svc.ns{path}", data=b"[]") as answer:
        said = await answer.json()
    assert (answer.status, said["type"], said["error"]["type"]) == (status, "error", kind)


async def test_anthropics_count_of_tokens_is_asked_of_a_ready_engine(relay):
    path = f"{MESSAGES}/count_tokens"
    relay.script(Do(status=200, body=b'{"input_tokens":3}'))
    status, _, body = await relay.post(ASKED[MESSAGES], path)
    assert (status, body, relay.engine.seen[0].target, relay.picker.asked) == (200, b'{"input_tokens":3}', path, [])


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/score", "/rerank", RESPONSES])
async def test_bodies_that_are_no_objects_are_refused(relay, path):
    async with relay.session.post(f"http://svc.ns{path}", data=b'{"input": "\xff"}') as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, "unreadable_body")


POOLED = (
    b":h\n\n:t 0 97\n:f 0 length\n\n:t 1 97\n:f 1 length\n\n"
    + b':u {"prompt_tokens":9}\n:w 200\ndata: {"object":"list","data":[],"usage":{"prompt_tokens":9}}\n\n'
)


@pytest.mark.parametrize("frames", [True, False], ids=["frames", "plain"])
async def test_embeddings_are_tried_again_and_count_the_tokens_of_their_prompts(relay, frames):
    whole = POOLED.partition(b"data: ")[2].strip()
    answer = (
        Do(frames=POOLED) if frames else Do(status=200, body=whole, headers=(("content-type", "application/json"),))
    )
    relay.script(Do(no_head=True), replace(answer, cut=30) if frames else Do(no_head=True), answer)
    status, headers, body = await relay.post({"model": "m", "input": ["a", "b"]}, "/v1/embeddings")
    assert (status, headers["content-type"], body) == (200, "application/json", whole)
    report = await relay.report()
    assert (report["prompt_tokens"], report["completion_tokens"]) == (9, 0)
    ask = relay.picker.asked[0]
    assert (ask.body.choices, ask.body.max_tokens, ask.path) == (2, 0, "/v1/embeddings")


LARGE = b'{"object":"list","data":"' + b"0.123456," * 3_000_000 + b'"}'
"""Embeddings of 27 MB."""
LARGE_FRAMES = POOLED.partition(b"data: ")[0] + b"data: " + LARGE + b"\n\n"


async def test_embeddings_of_any_length_pass_and_are_tried_again_until_they_have_begun(relay, monkeypatch):
    monkeypatch.setattr(UsageReader, "read", None)  # reading them would stop all streams: the notes have the counts
    relay.script(Do(no_head=True), Do(frames=LARGE_FRAMES, split=2**20, cut=10 * 2**20), Do(frames=LARGE_FRAMES))
    status, headers, body = await relay.post({"model": "m", "input": ["a", "b"]}, "/v1/embeddings")
    assert (status, headers["content-type"], body == LARGE) == (200, "application/json", True)
    report = await relay.report()
    assert (report["status"], report["prompt_tokens"], report["completion_tokens"]) == (200, 9, 0)
    assert (report["error"], len(report["endpoints"])) == ("", 2)
    assert relay.shared.kept.size == 0
    begun = relay.engine.connections
    relay.script(Do(frames=LARGE_FRAMES), Do(frames=POOLED))
    for _ in range(2):
        assert (await relay.post({"model": "m", "input": ["a", "b"]}, "/v1/embeddings"))[0] == 200
    assert relay.engine.connections == begun + 1


async def test_long_embeddings_that_break_off_are_broken_off(relay):
    relay.script(Do(frames=LARGE_FRAMES, cut=20 * 2**20))
    with pytest.raises(aiohttp.ClientPayloadError):
        await relay.post({"model": "m", "input": ["a", "b"]}, "/v1/embeddings")
    assert len(relay.engine.seen) == 1
    assert (await relay.report())["error"] == "engine_lost"
    assert relay.shared.kept.size == 0


async def test_long_answers_take_the_memory_of_what_their_clients_have_not_read(relay):
    """Where one does not fit, it passes from there on."""
    kept = relay.shared.kept = Kept(8 * 2**20)
    relay.script(Do(frames=LARGE_FRAMES, split=2**18))
    body = json.dumps({"model": "m", "input": ["a", "b"]}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nhost: svc.ns\r\ncontent-length: %d\r\n\r\n" % len(body)
    clients = []
    for _ in range(3):
        clients.append(await asyncio.open_unix_connection(str(relay.socket), limit=2**10))
        clients[-1][1].write(head + body)
        assert (await clients[-1][0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    await asyncio.sleep(0.3)
    assert kept.size < 8 * 2**20
    unsent = sum(client.unsent_bytes for client in relay.clients)
    assert unsent < 16 * 2**20
    for _, writer in clients:
        writer.transport.abort()
    await eventually(lambda: kept.size == 0)


@PATHS
@pytest.mark.parametrize("name", ["vllm", "custom"])
async def test_engines_of_other_makes_are_tried_again_before_their_first_byte_only(relay, path, name):
    await relay.configure(engine=EngineType(name))
    events = undisturbed(path)
    head = (("content-type", "text/event-stream"),)
    relay.script(Do(no_head=True), Do(status=502, body=b"{}"), Do(status=200, body=events, headers=head))
    status, _, body = await relay.post(ASKED[path], path)
    assert (status, body) == (200, events)
    report = await relay.report()
    prompt = 5 if path == RESPONSES else 4
    assert (report["prompt_tokens"], report["completion_tokens"], report["error"]) == (prompt, 5, "")
    assert "return_token_ids" not in relay.engine.seen[0].json

    broken = (("content-length", "100000"), *head)
    relay.script(Do(status=200, body=events[:60], headers=broken, cut=60))
    relay.engine.seen.clear()
    with pytest.raises(aiohttp.ClientPayloadError):
        await relay.post(ASKED[path], path)
    assert len(relay.engine.seen) == 1


async def test_long_answers_of_other_engines_are_counted_and_leave_no_memory(relay):
    await relay.configure(engine=EngineType("custom"))
    head = (("content-type", "application/json"),)
    whole = LARGE[:-1] + b',"usage":{"prompt_tokens":9}}'
    relay.script(Do(status=200, body=whole, headers=head), Do(status=200, body=whole, headers=head))
    status, _, body = await relay.post({"model": "m", "input": ["a", "b"]}, "/v1/embeddings")
    assert (status, body == whole) == (200, True)
    assert (await relay.report())["prompt_tokens"] == 9
    async with relay.session.post("http://svc.ns/v1/embeddings", json={"model": "m", "input": "a"}) as answer:
        await answer.content.readexactly(2**20)
        assert relay.shared.counted.size > 0
        answer.close()
    await eventually(lambda: relay.shared.counted.size == 0)


async def test_a_custom_engine_that_is_lost_between_head_and_body_is_tried_elsewhere(relay):
    await relay.configure(engine=EngineType("custom"))
    for stream in (True, False):
        kind = "text/event-stream" if stream else "application/json"
        head = (("content-type", kind), ("content-length", "99"))
        relay.script(Do(status=200, headers=head, cut=0), Do(status=200, body=b"{}", headers=head[:1]))
        asked = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
        status, _, body = await relay.post(asked)
        assert (status, body) == (200, b"{}")

"""Engines that try to fill the memory or the time of the relay: their request ends, others go on."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from inflight_gateway.relay.answers.kept import Kept
from tests.gateway.relay.conftest import eventually
from tests.gateway.relay.fake_engine import Do
from tests.gateway.relay.http.test_client import raw
from tests.gateway.relay.test_continue import STREAM, WHOLE, same

KIB, MIB = 2**10, 2**20
EVENT = b'data: {"created":5,"x":"' + b"y" * 60_000 + b'"}\n\n'
TOKEN = b':t 0 7\ndata: {"created":5}\n\n'


def code(body: bytes) -> str:
    return json.loads(body.rstrip().rsplit(b"data: ", 1)[-1])["error"]["code"]


async def others_go_on(relay) -> None:
    relay.script(Do())
    assert same((await relay.post(STREAM))[2], STREAM)
    assert relay.shared.kept.size == 0


@pytest.mark.parametrize(
    ("asked", "frames"),
    [
        (STREAM, EVENT * 20),
        (STREAM, b"data: " + b"x" * 2 * MIB),
        (WHOLE, b":h\ndata: " + b"x" * 17 * MIB),
        (WHOLE, b"data: " + b"x" * 17 * MIB),
        (WHOLE, b":t 0 1\n" * 500_000 + b"\n"),
        (STREAM, b":h\n\n" * 10_000),
        (STREAM, b":h\n:h\n:unknown\n\n" * 10_000),
        (STREAM, b"\n\n" * 10_000),
    ],
    ids=[
        "events before a token",
        "endless frame",
        "no whole",
        "no notes",
        "notes",
        "heartbeats",
        "unknown notes",
        "empty frames",
    ],
)
async def test_an_answer_that_passes_a_bound_ends_its_request_at_once(relay, asked, frames):
    relay.script(Do(frames=frames, hang=len(frames)))
    status, _, body = await relay.post(asked)
    assert (status, code(body)) == (502, "engine_lost")
    assert len(relay.engine.seen) == 1
    assert (await relay.report())["error"] == "engine_lost"
    await asyncio.wait_for(relay.engine.seen[0].cancelled.wait(), 60)
    await others_go_on(relay)


@pytest.mark.parametrize(
    "note",
    [b":t 1 5", b":t 4294967296 5", b":s 7 5", b":f 7 stop", b":t 0 " + b",".join([b"1"] * 8), b":f 0 " + b"x" * KIB]
    + [b":t 0 1\n\n:u " + usage for usage in (b'{"completion_tokens":-5}', b'{"completion_tokens":1e30}')],
)
async def test_notes_that_the_request_did_not_ask_for_are_garbage(relay, note):
    relay.script(Do(frames=note + b"\n\n", hang=10**9))
    status, _, body = await relay.post(STREAM)
    assert (status, code(body)) in ((502, "engine_lost"), (502, "not_continued"))
    report = await relay.report()
    assert 0 <= report["completion_tokens"] <= 7
    await others_go_on(relay)


async def test_within_an_answer_a_bound_ends_the_stream_with_an_error(relay):
    relay.script(Do(frames=TOKEN + b"data: " + b"x" * 2 * MIB, hang=10**9))
    status, _, body = await relay.post(STREAM)
    assert (status, code(body)) == (200, "engine_lost")
    assert len(relay.engine.seen) == 1
    await others_go_on(relay)


async def test_answers_of_one_service_that_fill_its_part_end_and_leave_nothing_behind(relay):
    """20 unfinished frames of 900 KiB are more than half of 16 MiB; another service has the rest (test_kept.py)."""
    kept = relay.shared.kept = Kept(16 * MIB)
    frames = TOKEN + b"data: " + b"x" * 900 * KIB
    relay.script(Do(frames=frames, hang=len(frames)))
    answers = [asyncio.create_task(relay.post(STREAM)) for _ in range(20)]
    await eventually(lambda: sum(each.done() for each in answers) >= 11)
    assert kept.size <= 8 * MIB
    assert {code((await each)[2]) for each in answers if each.done()} == {"engine_lost"}
    for each in answers:
        each.cancel()
    await eventually(lambda: kept.size == 0)
    relay.shared.kept = Kept()
    await others_go_on(relay)


async def test_a_whole_answer_counts_until_its_client_has_read_it(relay):
    """Else slow clients of large answers would fill the memory with what they do not read."""
    kept = relay.shared.kept
    size = 8 * MIB
    body = json.dumps(WHOLE).encode()
    relay.script(Do(frames=b':w 200\ndata: {"x":"' + b"y" * size + b'"}\n\n'))
    reader, writer = await asyncio.open_unix_connection(str(relay.socket), limit=2**10)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: svc.ns\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(0.1)
    (client,) = relay.clients
    assert client.unsent_bytes < 256 * KIB
    assert kept.size > size / 2
    assert relay.reports == []
    assert len(await reader.readexactly(size)) == size
    assert (await relay.report())["status"] == 200
    assert kept.size == 0
    writer.transport.abort()


async def test_unsent_data_of_slow_clients_count(relay):
    frame = b':t 0 7\ndata: {"created":5,"x":"' + b"y" * 10_000 + b'"}\n\n'
    relay.script(Do(frames=frame * 600, split=60_000))
    body = json.dumps({**STREAM, "max_tokens": 600}).encode()
    _, writer = await asyncio.open_unix_connection(str(relay.socket), limit=2**10)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: svc.ns\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await eventually(lambda: relay.shared.kept.size > 0)
    (client,) = relay.clients
    await asyncio.sleep(0.2)
    assert client.unsent_bytes < 300 * KIB
    assert relay.shared.kept.size < 400 * KIB
    writer.transport.abort()
    await eventually(lambda: relay.shared.kept.size == 0)


@pytest.mark.parametrize(
    "frames",
    [b":t 0 7\n\n" + b":h\n\n" * 20_000, EVENT * 15, b'data: {"x":1}\n\n' * 60_000],
    ids=["heartbeats", "events", "small events"],
)
async def test_an_engine_at_full_speed_leaves_other_streams_their_turns(relay, frames):
    relay.script(Do(frames=frames * 10, split=len(frames)))
    longest, ended = 0.0, asyncio.Event()

    async def watch() -> None:
        nonlocal longest
        while not ended.is_set():
            begun = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - begun)

    watching = asyncio.create_task(watch())
    await relay.post(STREAM)
    ended.set()
    await watching
    assert longest < 0.2


async def test_a_hostile_head_is_tried_at_another_engine_and_is_no_death(relay):
    relay.script(Do(status=200, headers=(("x", "y" * 70_000),)), Do(status=200, headers=(("x", "a\x01b"),)), Do())
    assert same((await relay.post(STREAM))[2], STREAM)
    assert relay.picker.asked[2].avoid == tuple(relay.engine.addresses[:2])


async def test_a_time_of_creation_with_thousands_of_digits_is_none(relay):
    """Converting it raised where the head was due."""
    frames = b':t 0 7\ndata: {"created":' + b"9" * 5000 + b"}\n\n"
    relay.script(Do(frames=frames, cut=len(frames)), Do(frames=b"data: [DONE]\n\n"))
    status, _, body = await relay.post(STREAM)
    assert (status, body) == (200, frames.partition(b"\n")[2] + b"data: [DONE]\n\n")


async def test_a_status_that_is_none_does_not_reach_the_client(relay):
    relay.script(Do(frames=b":w 99\ndata: {}\n\n"))
    answer = await raw(relay, b"POST /v1/completions HTTP/1.1\r\nhost: svc.ns\r\ncontent-length: 2\r\n\r\n{}", b"\r\n")
    assert answer.startswith(b"HTTP/1.1 502 ")


async def test_token_ids_without_an_end_are_memory_too(relay):
    relay.shared.kept = Kept(2 * MIB)
    frame = b":t 0 " + b"9" * 60_000 + b'\ndata: {"created":5}\n\n'
    relay.script(Do(frames=TOKEN + frame * 100, split=len(frame)))
    _, _, body = await relay.post({**STREAM, "max_tokens": 1000})
    assert code(body) == "engine_lost"
    assert relay.shared.kept.size == 0

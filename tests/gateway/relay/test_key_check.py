"""Large bodies are read after the picker has checked the request's API key, and small ones at once."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

import pytest

from tests.gateway.relay.conftest import QUICK, eventually
from tests.gateway.relay.fake_engine import Do
from tests.gateway.relay.test_continue import STREAM, WHOLE, same

REFUSED = ("www-authenticate", "Bearer"), ("x-inflight-check-key", "1")
LARGE = {**STREAM, "messages": "x" * 300_000}


@pytest.mark.parametrize(
    "check", [Do(status=200), Do(status=400), Do(status=401), Do(status=503), Do(no_head=True), Do(status=404)]
)
async def test_whatever_is_no_401_lets_the_body_follow(relay, check):
    """An engine answers where no picker runs."""
    relay.script(check, Do())
    status, _, body = await relay.post(LARGE)
    assert status == 200
    assert same(body, STREAM)
    first, second = relay.engine.seen
    assert (first.headers["x-inflight-check-key"], first.body) == ("1", b"")
    assert first.headers["x-inflight-request-id"] == second.headers["x-inflight-request-id"]
    assert "x-inflight-check-key" not in second.headers
    assert second.json == LARGE


async def test_a_401_is_the_answer_and_is_reported_once(relay):
    relay.script(Do(status=401, body=b'{"error":{}}', headers=REFUSED, endpoint=""))
    status, headers, body = await relay.post(LARGE)
    assert (status, body, headers["www-authenticate"]) == (401, b'{"error":{}}', "Bearer")
    assert "x-inflight-check-key" not in headers
    assert len(relay.engine.seen) == 1
    assert (await relay.report())["status"] == 401
    await asyncio.sleep(0.2)
    assert len(relay.reports) == 1
    assert relay.worker._shared.bodies.kept == 0


async def test_small_bodies_are_not_checked_apart(relay):
    await relay.post(STREAM)
    assert len(relay.engine.seen) == 1


async def test_a_client_that_leaves_during_the_check_leaves_nothing_behind(relay):
    relay.script(Do(hang=0, frames=b""))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(relay.post(LARGE), 0.2)
    assert (await relay.report())["error"] == "client_left"
    assert relay.worker._shared.bodies.kept == 0


async def test_where_many_bodies_are_being_received_small_ones_are_checked_too(make):
    """Clients without a key cannot fill the memory with parts of small bodies that they never complete."""
    relay = await make(replace(QUICK, max_bodies_bytes=400_000))
    relay.engine.script = lambda _number, seen: (
        Do(status=401, body=b"{}", headers=REFUSED, endpoint="")
        if "x-inflight-check-key" in seen.headers and "authorization" not in seen.headers
        else Do()
    )
    bodies = relay.worker._shared.bodies
    slow = []
    for _ in range(10):
        reader, writer = await asyncio.open_unix_connection(str(relay.socket))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 60000\r\n\r\n" + b"x" * 40_000)
        slow.append((reader, writer))
    await eventually(lambda: bodies.unchecked == 2 * 40_000 and sum(bool(r._buffer) for r, _ in slow) == 8)
    for _ in range(10):
        status, _, body = await relay.post({**STREAM, "messages": "x" * 60_000}, headers={"authorization": "Bearer k"})
        assert status == 200
        assert same(body, STREAM)
    for _, writer in slow:
        writer.close()
    await eventually(lambda: (bodies.kept, bodies.unchecked) == (0, 0))


@pytest.mark.parametrize("length", [10, 300_000])
async def test_chunked_bodies_leave_the_connection_usable(relay, length):
    """Reading is paused for the check, which is not needed where the body is complete by then."""
    body = json.dumps({**WHOLE, "messages": "x" * length}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
    reader, writer = await asyncio.open_unix_connection(str(relay.socket))
    relay.engine.script = lambda number, seen: Do(status=400) if "x-inflight-check-key" in seen.headers else Do()
    for _ in range(3):
        writer.write(request % (len(body), body))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 2)
        assert head.startswith(b"HTTP/1.1 200 ")
        await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
    writer.close()

"""Requests of clients as the relay takes them: headers, bounds of bodies, ids."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.relay.fake_engine import Do
from tests.gateway.relay.test_continue import STREAM


async def raw(relay, data: bytes, end: bytes | None = None) -> bytes:
    """Sends bytes; returns the answer up to `end` or the connection's end."""
    reader, writer = await asyncio.open_unix_connection(str(relay.socket))
    writer.write(data)
    try:
        async with asyncio.timeout(60):
            return await (reader.read() if end is None else reader.readuntil(end))
    finally:
        writer.transport.abort()


async def test_internal_headers_of_a_client_go_no_further(relay):
    relay.script(Do(status=200))
    forged = {"x-gateway-destination-endpoint": "1.2.3.4:9", "x-inflight-tenant": "boss", "x-inflight-progress": "7"}
    for path in ("/v1/completions", "/tokenize"):
        await relay.post(STREAM, path, headers=forged)
        sent = relay.engine.seen[-1].headers
        assert not set(forged.items()) & set(sent.items())
        assert "x-gateway-destination-endpoint" not in sent


@pytest.mark.parametrize("known", [True, False], ids=["length", "chunked"])
@pytest.mark.parametrize(("path", "most"), [("/v1/completions", 32), ("/tokenize", 1)])
async def test_a_body_over_the_bound_is_refused(relay, known, path, most):
    size = (most << 20) + 1
    framing = b"content-length: %d\r\n\r\n" % size if known else b"transfer-encoding: chunked\r\n\r\n%x\r\n" % size
    body = b"" if known else b"x" * size
    answer = await raw(relay, b"POST %b HTTP/1.1\r\nhost: svc.ns\r\n" % path.encode() + framing + body)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer
    assert relay.engine.seen == []


async def test_an_early_response_reaches_a_client_that_still_sends(relay):
    """A connection that is closed with unread data is reset: the response could be lost."""
    reader, writer = await asyncio.open_unix_connection(str(relay.socket))
    writer.write(b"POST /tokenize HTTP/1.1\r\nhost: svc.ns\r\ncontent-length: 5000000\r\n\r\n")
    for _ in range(50):
        writer.write(b"x" * 100_000)
        await writer.drain()
    answer = await asyncio.wait_for(reader.read(), 60)
    assert answer.startswith(b"HTTP/1.1 413 ")
    writer.close()


@pytest.mark.parametrize("given", ["über-1", "a b", "x" * 129])
async def test_a_request_id_that_cannot_be_signed_is_replaced(relay, given):
    """Gateway and engine would read its bytes differently, and reports would fit no request."""
    status, _, _ = await relay.post(STREAM, headers={"x-request-id": given})
    assert status == 200
    seen = relay.engine.seen[0].headers["x-request-id"]
    assert len(seen) == 32
    assert (await relay.report())["external_id"] == seen


async def test_requests_with_one_x_request_id_have_an_id_of_their_own_at_all_attempts(relay):
    """Else two clients that send the same one would settle each other's charge."""
    forged = {"x-request-id": "same", "x-inflight-request-id": "forged"}
    relay.script(Do(no_head=True), Do())
    await relay.post(STREAM, headers=forged)
    await relay.post(STREAM, headers=forged)
    first, again, other = (ask.id for ask in relay.picker.asked)
    assert first == again != other
    assert "forged" not in (first, other)
    assert {seen.headers["x-request-id"] for seen in relay.engine.seen} == {"same"}
    reports = [await relay.report(number) for number in (0, 1)]
    assert [report["request_id"] for report in reports] == [first, other]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"model": "\xff"}', b"[" * 100_000, b'\xef\xbb\xbf{"stream":true}']
)
async def test_a_body_that_the_gateway_cannot_read_is_refused(relay, body):
    async with relay.session.post("http://svc.ns/v1/completions", data=body) as response:
        assert response.status == 400
    assert relay.engine.seen == []

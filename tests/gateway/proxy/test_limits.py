"""A real Envoy: what one client may take of it."""

from __future__ import annotations

import asyncio
import contextlib
import time

from tests.gateway.gateway_stack import until
from tests.gateway.hostile import http2

REQUEST = b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n"
GET = http2.fields([(":method", "GET"), (":scheme", "http"), (":path", "/v1/models"), (":authority", "a")])


def opened(stream):
    return http2.frame(http2.HEADERS, GET, http2.END_HEADERS | http2.END_STREAM, stream)


async def test_an_idle_connection_is_closed_and_one_that_waits_for_its_answer_is_not(edge):
    await edge.start("--idle-timeout", "0.5")
    (relay,) = edge.relays
    relay.answering.clear()
    idle, _ = await asyncio.open_connection("127.0.0.1", edge.port)
    waiting, writer = await asyncio.open_connection("127.0.0.1", edge.port)
    writer.write(REQUEST)
    assert await asyncio.wait_for(idle.read(), 60) == b""
    await asyncio.sleep(0.5)
    relay.answering.set()
    assert (await asyncio.wait_for(waiting.readline(), 60)).startswith(b"HTTP/1.1 200")
    await asyncio.wait_for(waiting.read(), 60)


async def test_a_connection_has_at_most_100_requests_at_a_time(edge):
    await edge.start()
    (relay,) = edge.relays
    relay.answering.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
    streams = b"".join(opened(2 * number + 1) for number in range(101))
    writer.write(http2.PREFACE + http2.frame(http2.SETTINGS, stream=0) + streams)
    received = b""
    refused = http2.frame(http2.RST_STREAM, (7).to_bytes(4), stream=2 * 100 + 1)
    while refused not in received:
        piece = await asyncio.wait_for(reader.read(65536), 60)
        assert piece
        received += piece
    await until(lambda: len(relay.seen) >= 100, "100 requests reach the relay")
    assert len(relay.seen) == 100
    writer.close()


async def test_windows_bound_what_is_sent_before_it_is_read(edge):
    await edge.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
    writer.write(http2.PREFACE + http2.frame(http2.SETTINGS, stream=0))
    grown = http2.frame(http2.WINDOW_UPDATE, (2**20 - 65535).to_bytes(4), stream=0)  # of the connection
    settings = await asyncio.wait_for(reader.readuntil(grown), 60)
    assert (3).to_bytes(2) + (100).to_bytes(4) in settings  # SETTINGS_MAX_CONCURRENT_STREAMS
    assert (4).to_bytes(2) + (65536).to_bytes(4) in settings  # SETTINGS_INITIAL_WINDOW_SIZE
    writer.close()


async def test_a_client_that_opens_and_resets_streams_is_disconnected(edge):
    """CVE-2023-44487."""
    await edge.start()
    (relay,) = edge.relays
    relay.answering.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
    writer.write(http2.PREFACE + http2.frame(http2.SETTINGS, stream=0))
    with contextlib.suppress(ConnectionError):
        for number in range(400):
            reset = http2.frame(http2.RST_STREAM, (8).to_bytes(4), stream=2 * number + 1)
            writer.write(opened(2 * number + 1) + reset)
        await writer.drain()
        await asyncio.wait_for(reader.read(), 60)  # until Envoy closes the connection


async def test_too_many_requests_to_anthropics_paths_get_429_in_its_form(edge):
    await edge.start("--requests-per-second", "1")
    while (answer := await edge.ask("/v1/messages?beta=true"))[0] == 200:
        pass
    status, body, headers = answer
    assert (status, headers["retry-after"]) == (429, "1")
    assert (body["type"], body["error"]["type"]) == ("error", "rate_limit_error")


async def test_an_address_with_too_many_requests_gets_429_and_another_one_is_served(edge):
    await edge.start("--requests-per-second", "3")
    answers = [await edge.ask() for _ in range(9)]
    statuses = [status for status, _, _ in answers]
    assert statuses[:6] == [200] * 6  # a burst of two seconds
    status, body, headers = answers[-1]
    assert (status, headers["retry-after"]) == (429, "1")
    assert body["error"]["type"] == "rate_limit_error"
    assert body["error"]["code"] == "rate_limit_exceeded"
    assert "127.0.0.1;" in body["error"]["message"]
    assert (await edge.ask(source="127.0.0.2"))[0] == 200
    # An address that a client makes up does not count.
    assert (await edge.ask(headers={"x-forwarded-for": "127.0.0.3"}))[0] == 429
    begin = time.monotonic()
    while (await edge.ask())[0] == 429:
        assert time.monotonic() - begin < 60
        await asyncio.sleep(0.1)


async def test_more_addresses_than_envoys_default_are_told_apart(edge):
    await edge.start("--requests-per-second", "1")
    for net in range(1, 50):  # until it takes less than the second in which an address may send one more
        addresses = [f"127.0.{net}.{number}" for number in range(1, 30)]
        begin = time.monotonic()
        await asyncio.gather(*(edge.ask(source=address) for address in addresses * 2))
        statuses = {status for status, *_ in await asyncio.gather(*(edge.ask(source=each) for each in addresses))}
        if time.monotonic() - begin < 1.0:
            break
    assert statuses == {429}


async def test_headers_of_the_gateways_own_names_are_removed_and_so_are_those_with_underscores(edge):
    await edge.start()
    forged = {
        "x-inflight-new": "1",
        "x-inflight-jwt-tenant": "someone",
        "x-inflight-tenant": "someone",
        "X-Envoy-Original-Dst-Host": "127.0.0.1:1",
        "x-envoy-max-retries": "50",
        "x-gateway-destination-endpoint-new": "1",
        "x_inflight_tenant": "someone",
    }
    status, _, headers = await edge.ask(headers={**forged, "x-mine": "1", "Host": "a.b."})
    assert status == 200
    ((request, _),) = edge.relays[0].seen
    assert not {name.lower() for name in forged} & {name.lower() for name in request.headers}
    assert (request.headers["x-mine"], request.headers["host"]) == ("1", "a.b")
    assert not [name for name in headers if name.lower().startswith("x-envoy")]


async def test_request_ids_are_kept_or_made(edge):
    await edge.start()
    (relay,) = edge.relays
    _, _, headers = await edge.ask(headers={"x-request-id": "my-id-1"})
    assert headers["x-request-id"] == relay.seen[0][0].headers["x-request-id"] == "my-id-1"
    _, _, headers = await edge.ask()
    assert headers["x-request-id"] == relay.seen[1][0].headers["x-request-id"] != ""

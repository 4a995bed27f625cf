"""A real Envoy: requests while relays are not there, or die."""

from __future__ import annotations

import asyncio
import json
import socket
from http.client import HTTPResponse

import pytest

from inflight_gateway.proxy.drain import Admin, drain
from tests.gateway.gateway_stack import until
from tests.gateway.proxy.edge import Relay

LARGE = b"x" * (900 * 2**10)


async def posted(edge, data=b"{}"):
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    answer = await asyncio.wait_for(reader.read(), 60)
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body), head


async def test_requests_wait_for_relays_that_start_within_a_second(edge):
    await edge.start(relays=0)
    waiting = [asyncio.create_task(posted(edge)) for _ in range(10)]
    await asyncio.sleep(0.3)
    edge.relays.append(await Relay().start(edge.sockets.relay(0)))
    assert {status for status, _, _ in await asyncio.gather(*waiting)} == {200}


async def test_without_relays_requests_get_503_in_openais_format(edge):
    await edge.start(relays=0)
    status, body, head = await posted(edge)
    assert status == 503
    assert body["error"]["type"] == "service_unavailable_error"
    assert b"retry-after: 1" in head


async def test_envoys_own_errors_have_anthropics_form_on_its_paths(edge):
    await edge.start(relays=0)
    lines = b"POST /v1/messages HTTP/1.1\r\nhost: a\r\n"
    status, body = await asyncio.to_thread(exchanged, edge, lines + b"content-length: 2\r\n\r\n{}")
    assert (status, json.loads(body)["type"], json.loads(body)["error"]["type"]) == (503, "error", "overloaded_error")


async def test_another_relay_gets_the_whole_request_of_one_that_dies(edge):
    await edge.start(relays=2)
    for relay in edge.relays:
        relay.answering.clear()
    asked = asyncio.create_task(posted(edge, LARGE))
    await until(lambda: any(relay.seen for relay in edge.relays), "a relay has the request")
    first, second = sorted(edge.relays, key=lambda relay: not relay.seen)
    second.answering.set()
    first.abort()
    assert (await asked)[:2] == (200, {"served": True})
    assert [body for _, body in second.seen] == [LARGE]


async def test_a_request_that_every_relay_dies_of_ends(edge):
    await edge.start(relays=2)
    for relay in edge.relays:
        relay.answering.clear()
    asked = asyncio.create_task(posted(edge))
    deaths = 0
    while not asked.done():
        for relay in edge.relays:
            deaths += len(relay.seen)
            if relay.seen:
                relay.abort()
            relay.seen.clear()
        await asyncio.sleep(0.02)
    assert (await asked)[0] == 503
    assert deaths == 7


async def test_a_relay_that_dies_is_not_sent_more_than_its_share(edge):
    """Health checks notice a socket that is gone."""
    await edge.start(relays=2)
    await edge.relays[0].stop()
    edge.sockets.relay(0).unlink(missing_ok=True)
    for _ in range(20):
        assert (await edge.ask())[0] == 200


def exchanged(edge, data):
    """Status and body that come back on a connection of its own, which Envoy may leave open for a second more."""
    with socket.create_connection(("127.0.0.1", edge.port), timeout=10) as raw:
        raw.sendall(data)
        answer = HTTPResponse(raw)
        answer.begin()
        return answer.status, answer.read()


@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        (b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: x\r\n\r\n", 400, b"transfer_encoding"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nno colon\r\n\r\n", 400, b"codec_error"),
        (b"GET / HTTP/1.0\r\nhost: a\r\n\r\n", 426, b"low_version"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, b"missing_host"),
        (b"CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\nconnection: close\r\n\r\n", 404, b"route_not_found"),
        (b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 200 + b"\r\n", 431, b"too_many_headers"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 62_000 + b"\r\n\r\n", 431, b"headers_too_large"),
    ],
)
async def test_envoys_own_refusals_are_errors_in_openais_shape(edge, request_, status, why):
    await edge.start()
    found, body = await asyncio.to_thread(exchanged, edge, request_)
    assert found == status, body
    error = json.loads(body)["error"]
    assert error["type"] == "invalid_request_error"
    assert why in error["code"].encode(), error


async def test_a_draining_envoy_is_not_ready_and_counts_requests_until_they_end(edge):
    await edge.start()
    (relay,) = edge.relays
    relay.answering.clear()
    asked = asyncio.create_task(posted(edge))
    await until(lambda: relay.seen, "the relay has the request")
    async with Admin(edge.sockets.admin) as admin:
        assert await admin.ready()
        assert await admin.active_requests() == 1
    draining = asyncio.create_task(drain(edge.sockets.admin, 0.0, 300.0))
    await asyncio.sleep(0.5)
    assert not draining.done()
    relay.answering.set()
    status, _, head = await asked
    assert status == 200
    assert b"connection: close" in head
    await asyncio.wait_for(draining, 60)


async def test_an_envoy_that_is_not_there_is_not_ready(edge):
    assert not await edge.ready()


async def test_clients_that_wait_are_left_alone_while_others_upload(edge):
    """All requests share a connection to the relay. Where it is full, Envoy reads no more of each client."""
    await edge.start()
    (relay,) = edge.relays
    relay.answering.clear()
    waiting = [asyncio.create_task(posted(edge)) for _ in range(50)]
    await until(lambda: len(relay.seen) == 50, "50 requests wait")
    uploads = [asyncio.create_task(posted(edge, LARGE)) for _ in range(20)]
    await until(lambda: len(relay.seen) == 70, "the uploads are whole", 60)
    relay.answering.set()
    assert {status for status, _, _ in await asyncio.gather(*waiting, *uploads)} == {200}
    # An upload fills its own window of 256 KiB; with the connection's default it is 50 clients each 32 KiB.
    assert await edge.stat("http.clients.downstream_flow_control_paused_reading_total") < 1000


async def test_the_largest_head_of_an_answer_that_an_engine_may_send_is_not_asked_for_twice(edge):
    """Envoy retries what it refuses."""
    await edge.start()
    (relay,) = edge.relays
    relay.more = [(b"x-%d" % number, b"v" * 650) for number in range(99)]
    status, _, head = await posted(edge)
    assert (status, len(relay.seen)) == (200, 1)
    assert len(head) > 2**16 - 640

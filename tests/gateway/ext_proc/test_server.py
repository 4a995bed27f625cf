"""Requests of the pod's Envoy, message by message: however a stream ends, nothing of its request remains."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
)

from inflight_gateway.ext_proc.frames import framed
from inflight_gateway.settings import PickerSettings, Sockets
from inflight_gateway.types import Endpoint, ServiceConfig, ServiceKey
from inflight_gateway.wiring import Gateway
from tests.gateway.ext_proc.http2_peer import DATA, END_STREAM, HEADERS, RST_STREAM, Peer, frame, opened

KEY = ServiceKey("default", "a")
ENDPOINT = Endpoint("10.0.0.1:80", "pod")


def head(host="a.default", ends=False):
    pairs = {":method": "POST", ":path": "/v1/completions", ":authority": host, "x-request-id": "same"}
    values = [HeaderValue(key=name, raw_value=value.encode()) for name, value in pairs.items()]
    return ProcessingRequest(request_headers=HttpHeaders(headers=HeaderMap(headers=values), end_of_stream=ends))


BODY = ProcessingRequest(request_body=HttpBody(body=b'{"model":"m","prompt":"x"}', end_of_stream=True))


class Envoy(Peer):
    def __init__(self, gateway):
        super().__init__(gateway.processor._answer)
        self.gateway = gateway

    def sends(self, number, *messages):
        for message in messages:
            self.say(frame(DATA, 0, number, framed(message.SerializeToString())))

    async def hears(self):
        """Answers, and ends of streams, since the last call."""
        for _ in range(5):
            await asyncio.sleep(0)
        return [
            (number, ProcessingResponse.FromString(payload[5:]).WhichOneof("response") if kind == DATA else kind)
            for kind, flags, number, payload in self.frames()
            if kind != HEADERS or flags & END_STREAM
        ]

    @property
    def load(self):
        """Requests held and in flight."""
        load = self.gateway._stream._source.service_loads()[KEY]
        return load.held, load.in_flight


@asynccontextmanager
async def connected(tmp_path, *endpoints):
    async with Gateway.open(PickerSettings(sockets=Sockets(tmp_path), access_log=False)) as gateway:
        gateway.catalog.update(services={KEY: ServiceConfig(KEY, "uid", "m")}, endpoints={KEY: endpoints})
        yield Envoy(gateway)


ENDS = {
    "the end of the stream": lambda envoy: envoy.say(frame(DATA, END_STREAM, 1)),
    "a reset": lambda envoy: envoy.say(frame(RST_STREAM, 0, 1, bytes(4))),
    "a lost connection": lambda envoy: envoy.connection.connection_lost(None),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_a_request_is_in_flight_from_its_pick_until_its_stream_ends(tmp_path, end):
    async with connected(tmp_path, ENDPOINT) as envoy:
        envoy.say(opened(1))
        envoy.sends(1, head())
        assert await envoy.hears() == [(1, "request_headers")]
        envoy.sends(1, BODY)
        assert await envoy.hears() == [(1, "request_body")]
        assert envoy.load == (0, 1)
        end(envoy)
        assert envoy.load == (0, 0)


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_a_held_request_asks_for_time_and_leaves_the_queue_when_its_stream_ends(tmp_path, end):
    async with connected(tmp_path) as envoy:
        envoy.say(opened(1))
        envoy.sends(1, head(), BODY)
        # The longer timeout is a message without a response.
        assert await envoy.hears() == [(1, "request_headers"), (1, None)]
        assert envoy.load == (1, 0)
        end(envoy)
        await envoy.hears()
        assert envoy.load == (0, 0)


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_a_stream_that_ends_before_its_body_was_looked_at_leaves_nothing(tmp_path, end):
    async with connected(tmp_path, ENDPOINT) as envoy:
        envoy.say(opened(1))
        envoy.sends(1, head(), BODY)
        end(envoy)
        await envoy.hears()
        assert envoy.load == (0, 0)


async def test_a_request_without_a_body_is_picked_by_its_head_and_a_refused_one_at_once(tmp_path):
    async with connected(tmp_path, ENDPOINT) as envoy:
        envoy.say(opened(1) + opened(3))
        envoy.sends(1, head(ends=True))
        envoy.sends(3, head("unknown", ends=True))
        assert sorted(await envoy.hears()) == [(1, "request_headers"), (3, "immediate_response")]
        assert envoy.load == (0, 1)


async def test_a_bug_ends_its_own_stream_and_counts_nothing(tmp_path, monkeypatch):
    async with connected(tmp_path, ENDPOINT) as envoy:

        async def admit(*_):
            raise RuntimeError("a bug")

        envoy.say(opened(1) + opened(3))
        envoy.sends(1, head(), BODY)
        assert await envoy.hears() == [(1, "request_headers"), (1, "request_body")]
        monkeypatch.setattr(envoy.gateway._gate, "admit", admit)
        envoy.sends(3, head(), BODY)
        assert await envoy.hears() == [(3, "request_headers"), (3, RST_STREAM)]
        assert envoy.load == (0, 1)


async def test_a_message_that_the_filter_should_not_send_ends_its_stream(tmp_path):
    async with connected(tmp_path, ENDPOINT) as envoy:
        envoy.say(opened(1))
        envoy.sends(1, BODY)
        assert await envoy.hears() == [(1, RST_STREAM)]

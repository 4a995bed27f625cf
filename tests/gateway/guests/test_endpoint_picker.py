"""The picker as the endpoint picker of another gateway: external processing over TCP."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import signal
import socket

import grpc
import pytest
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue, Metadata
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProtocolConfiguration,
)
from google.protobuf.struct_pb2 import Struct

from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import pool_port
from inflight_gateway.guests.endpoint_picker import CHUNK_BYTES
from inflight_gateway.settings import any_address
from tests.gateway.client import service
from tests.gateway.gateway_stack import GatewayStack, until
from tools.measure.served import free_port

KEY = "ifk_" + "a" * 43
DESTINATION = "x-gateway-destination-endpoint"
TWIN = f"twin-{secrets.token_hex(4)}"
"""The name gives the port: tests that run at the same time take different ones."""
DUPLEX = ProcessingMode.FULL_DUPLEX_STREAMED


def head(subset=None, *, mode=ProcessingMode.BUFFERED, ends=False, **headers):
    pairs = {":method": "POST", ":path": "/v1/completions", ":authority": "llm.example.com", **headers}
    values = [HeaderValue(key=name.replace("_", "-"), raw_value=value.encode()) for name, value in pairs.items()]
    metadata = Metadata()
    if subset is not None:
        hint = Struct()
        hint.update({f"{DESTINATION}-subset": subset})
        metadata.filter_metadata["envoy.lb.subset_hint"].CopyFrom(hint)
    return ProcessingRequest(
        request_headers=HttpHeaders(headers=HeaderMap(headers=values), end_of_stream=ends),
        metadata_context=metadata,
        protocol_config=ProtocolConfiguration(request_body_mode=mode, response_body_mode=mode),
    )


def body(content, *, ends=True):
    return ProcessingRequest(request_body=HttpBody(body=content, end_of_stream=ends))


def mutated(common):
    """Headers that are set, and those that are removed."""
    mutation = common.header_mutation
    return {one.header.key: one.header.raw_value.decode() for one in mutation.set_headers}, set(mutation.remove_headers)


class OtherGateway:
    """A stream for one request."""

    def __init__(self, port, authority=None):
        options = () if authority is None else (("grpc.default_authority", authority),)
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        self._call = external_processor_pb2_grpc.ExternalProcessorStub(self._channel).Process()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self._call.cancel()
        await self._channel.close()

    async def say(self, *messages):
        for message in messages:
            await self._call.write(message)

    async def answer(self):
        return await self._call.read()


ENTRY = json.dumps({"tenant": "acme", "sha256": hashlib.sha256(KEY.encode()).hexdigest()})
SECRETS = [{"name": "keys", "data": {"k1": ENTRY}}]
SERVICES = [
    service("open", model="m", max_attempts=2) | {"endpoints": ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]},
    service("keyed", model="k", api_keys_secret="keys") | {"endpoints": ["10.0.0.4:80"]},
    service(TWIN, model="m2", inference_pool=True) | {"endpoints": ["10.0.0.5:80"]},
    service(TWIN, model="m2", namespace="other", inference_pool=True) | {"endpoints": ["10.0.0.6:80"]},
]


async def started(stack, *services, drain_min):
    """The port for other gateways of a picker. drain_min: seconds in which one that drains takes new calls."""
    stack.services(*services, secrets=SECRETS)
    key_file = stack.folder / "gateway-key"
    key_file.write_bytes(b"k" * 32)
    for _ in range(5):  # a free port may be another program's a moment later
        port, stack.state_port = free_port(), free_port()
        stack.state_url = f"http://127.0.0.1:{stack.state_port}"
        models = [f"--model-namespace={one}" for one in ("default", "other")]
        stack.picker_flags = ["--ext-proc-port", str(port), "--no-ext-proc-tls", "--drain-min", drain_min, *models]
        stack.picker_flags += ["--gateway-key-file", str(key_file)]
        stack.start_picker()
        picker = stack.processes["picker"]
        await until(lambda: picker.poll() is not None or "relays may connect" in stack.log("picker"), "it serves")  # noqa: B023
        if picker.poll() is None:
            return port
    raise AssertionError(stack.log("picker"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A picker of all tests that leave it as it is, and its port."""
    stack = GatewayStack(tmp_path_factory.mktemp("picker"))
    try:
        yield stack, asyncio.run(started(stack, *SERVICES, drain_min="0"))
    finally:
        stack.stop_all()


@pytest.fixture
def port(shared):
    return shared[1]


async def in_flight(stack):
    return sum(one["in_flight"] for one in (await stack.state())["services"])


async def picked(port, *messages, authority=None):
    """The destination of a request, or the status with which it is refused."""
    async with OtherGateway(port, authority) as other:
        await other.say(*messages)
        answer = await other.answer()
        if answer.WhichOneof("response") == "request_headers" and not answer.dynamic_metadata:
            answer = await other.answer()
        if answer.WhichOneof("response") == "immediate_response":
            return answer.immediate_response.status.code
        return answer.dynamic_metadata["envoy.lb"][DESTINATION]


async def test_the_endpoint_is_one_of_the_subset_in_header_and_metadata(port):
    for _ in range(4):
        async with OtherGateway(port) as other:
            await other.say(head(subset="10.0.0.2:80"))
            assert (await other.answer()).WhichOneof("response") == "request_headers"
            await other.say(body(b'{"model": "m", "prompt": "x"}'))
            answer = await other.answer()
            headers, removed = mutated(answer.request_body.response)
            assert headers[DESTINATION] == "10.0.0.2:80"
            assert {"x-inflight-tenant", "x-inflight-progress", f"{DESTINATION}-subset"} <= removed
            assert dict(answer.dynamic_metadata["envoy.lb"]) == {DESTINATION: "10.0.0.2:80"}


async def test_without_a_subset_the_list_is_as_long_as_the_service_allows(port):
    async with OtherGateway(port) as other:
        await other.say(head(), body(b'{"model": "m"}'))
        await other.answer()
        headers, _ = mutated((await other.answer()).request_body.response)
        assert len(headers[DESTINATION].split(",")) == 2


async def test_a_subset_without_a_replica_is_refused(port):
    async with OtherGateway(port) as other:
        await other.say(head(subset="10.9.9.9:80", **{":authority": "open.default"}), body(b'{"model": "m"}'))
        await other.answer()
        assert (await other.answer()).immediate_response.status.code == 503


async def test_an_empty_subset_is_refused_and_does_not_mean_all(port):
    assert await picked(port, head(subset=[]), body(b'{"model": "m"}')) == 503
    assert await picked(port, head(subset=["10.0.0.2:80", "10.9.9.9:80"]), body(b"{}")) == "10.0.0.2:80"


async def test_each_pool_has_a_port_of_its_own_which_tells_the_service_where_the_request_does_not(port):
    ambiguous = head(), body(b'{"model": "m2"}')
    assert await picked(port, *ambiguous) == 404
    ports = [pool_port(ServiceKey(namespace, TWIN)) for namespace in ("default", "other")]
    assert [await picked(one, *ambiguous) for one in ports] == ["10.0.0.5:80", "10.0.0.6:80"]
    without_body = head(ends=True, **{":method": "GET", ":path": "/v1/models"})
    assert [await picked(one, without_body) for one in ports] == ["10.0.0.5:80", "10.0.0.6:80"]


async def test_a_request_does_not_leave_the_pool_that_its_route_names(port):
    elsewhere = head(**{":authority": "open.default.svc"}), body(b'{"model": "m"}')
    assert await picked(pool_port(ServiceKey("other", TWIN)), *elsewhere) == "10.0.0.6:80"


async def test_the_port_of_a_pool_opens_when_its_service_comes(shared):
    stack, _ = shared
    new = ServiceKey("default", f"new-{secrets.token_hex(4)}")
    added = service(new.name, model="n", inference_pool=True) | {"endpoints": ["10.0.0.7:80"]}
    stack.services(*SERVICES, added, secrets=SECRETS)

    async def answers():
        try:
            return await picked(pool_port(new), head(ends=True)) == "10.0.0.7:80"
        except grpc.aio.AioRpcError:
            return False

    await until(answers, "the port of the new pool", 60)


async def test_istios_authority_which_is_no_host_is_taken(port):
    istio = "outbound|9002||chat-picker.team.svc.cluster.local"
    assert await picked(port, head(), body(b'{"model": "k"}'), authority=istio) == 401


async def test_keys_are_checked_and_headers_of_clients_not_believed(port):
    same = {"x-request-id": "same", "x-inflight-request-id": "same"}
    good = {"authorization": f"Bearer {KEY}", **same}
    forged = {"x-inflight-attempt": "2", "x-inflight-tenant": "acme", **same}
    async with OtherGateway(port) as running, OtherGateway(port) as other:
        await running.say(head(**good), body(b'{"model": "k"}'))
        await running.answer()
        headers, removed = mutated((await running.answer()).request_body.response)
        assert (headers[DESTINATION], headers["x-inflight-tenant"]) == ("10.0.0.4:80", "acme")
        assert {"authorization", "api-key"} <= removed
        await other.say(head(**forged), body(b'{"model": "k"}'))
        await other.answer()
        assert (await other.answer()).immediate_response.status.code == 401


@pytest.mark.parametrize("trailers", [False, True])
async def test_bodies_that_come_in_parts_are_sent_back_after_the_pick(port, trailers):
    content = b'{"model": "m", "prompt": "' + b"x" * 200_000 + b'"}'
    parts = [content[:70_000], content[70_000:]]
    async with OtherGateway(port) as other:
        await other.say(head(mode=DUPLEX), body(parts[0], ends=False), body(parts[1], ends=not trailers))
        if trailers:
            await other.say(ProcessingRequest(request_trailers=HttpTrailers()))
        headers, _ = mutated((await other.answer()).request_headers.response)
        assert DESTINATION in headers
        back, ends = b"", False
        while len(back) < len(content):
            part = (await other.answer()).request_body.response.body_mutation.streamed_response
            assert len(part.body) <= CHUNK_BYTES
            assert not ends
            back, ends = back + part.body, part.end_of_stream
        assert back == content
        assert ends is not trailers
        if trailers:
            assert (await other.answer()).WhichOneof("response") == "request_trailers"
        await other.say(ProcessingRequest(response_headers=HttpHeaders()))
        assert (await other.answer()).WhichOneof("response") == "response_headers"
        await other.say(ProcessingRequest(response_body=HttpBody(body=b"data", end_of_stream=True)))
        part = (await other.answer()).response_body.response.body_mutation.streamed_response
        assert (part.body, part.end_of_stream) == (b"data", True)


async def test_requests_count_with_the_status_of_the_engines_response(shared):
    stack, port = shared
    async with OtherGateway(port) as other:
        await other.say(head(), body(b'{"model": "m"}'))
        await other.answer()
        await other.answer()
        status = HeaderMap(headers=[HeaderValue(key=":status", raw_value=b"429")])
        await other.say(ProcessingRequest(response_headers=HttpHeaders(headers=status)))
        await other.answer()

    async def counted():
        return 'status="429"} 1.0' in await stack.metrics()

    await until(counted, "the request is counted", 60)


async def test_a_refused_body_is_not_sent_back(port):
    async with OtherGateway(port) as other:
        await other.say(head(mode=DUPLEX), body(b'{"model": "unknown"}'))
        assert (await other.answer()).immediate_response.status.code == 404


async def test_requests_are_in_flight_until_the_stream_ends(shared):
    stack, port = shared

    async def none():
        return await in_flight(stack) == 0

    await until(none, "the requests of other tests have ended", 60)
    async with OtherGateway(port) as other:
        await other.say(head(), body(b'{"model": "m"}'))
        await other.answer()
        await other.answer()
        assert await in_flight(stack) == 1
    await until(none, "the request has ended", 60)


def test_nodes_without_ipv6_are_listened_on_by_ipv4(monkeypatch):
    assert any_address() in ("::", "0.0.0.0")

    class NoIpv6(socket.socket):
        def __init__(self, family=socket.AF_INET, *more):
            if family == socket.AF_INET6:
                raise OSError(97, "Address family not supported by protocol")
            super().__init__(family, *more)

    monkeypatch.setattr(socket, "socket", NoIpv6)
    assert any_address() == "0.0.0.0"


async def test_open_calls_end_before_the_picker_does_and_new_ones_are_taken_for_a_while(stack):
    port = await started(stack, *SERVICES[:2], drain_min="3")
    picker = stack.processes["picker"]
    async with OtherGateway(port) as other:
        await other.say(head(), body(b'{"model": "m"}'))
        await other.answer()
        await other.answer()
        stack.signal("picker", signal.SIGTERM)
        assert await picked(port, head(), body(b'{"model": "k"}')) == 401
        await asyncio.sleep(4)
        assert picker.poll() is None
        await other.say(ProcessingRequest(response_headers=HttpHeaders()))
        assert (await other.answer()).WhichOneof("response") == "response_headers"
    await until(lambda: picker.poll() is not None, "the picker ends", 60)
    assert picker.returncode == 0

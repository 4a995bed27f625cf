"""The responder: each address its own engine, signed calls as the engine takes them."""

import asyncio
import hashlib
import hmac
import json
import time

import pytest

from inflight_contract.admin_signature import authorization, signature
from tools.standin.page import Engines, Page

PATH = "/v1/runtime_config"


class Transport(asyncio.Transport):
    """A stand-in for a connection to the pod at `address`."""

    def __init__(self, address):
        super().__init__({"sockname": (address, 8001)})
        self.written = b""

    def write(self, data):
        self.written += data


@pytest.fixture
def engines():
    made = Engines()
    made.command({"pods": [["10.128.0.1", "uid-1", "secret"], ["10.128.0.2", "uid-2", "secret"]]})
    return made


def ask(engines, address, *pieces):
    connection, transport = Page(engines), Transport(address)
    connection.connection_made(transport)
    for piece in pieces:
        connection.data_received(piece)
    return transport.written


def patch(authorization, body=b'{"max_num_seqs": 4, "max_num_batched_tokens": 256, "revision": 3}'):
    head = f"PATCH {PATH} HTTP/1.1\r\nAuthorization: {authorization}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def signed(pod="uid-1", token="secret", body=b'{"max_num_seqs": 4, "revision": 3}', at=None):
    stamp = str(int(time.time() if at is None else at))
    value = signature(token.encode(), "PATCH", PATH, pod, stamp, body)
    return patch(authorization(pod, stamp, value), body), value


def test_a_jump_shows_at_the_named_address_alone(engines):
    engines.command({"waiting": [40, ["10.128.0.1"]]})
    request = b"GET /metrics HTTP/1.1\r\n\r\n"
    assert b'vllm:num_requests_waiting{model_name="fake"} 40\n' in ask(engines, "10.128.0.1", request)
    assert b'vllm:num_requests_waiting{model_name="fake"} 0\n' in ask(engines, "10.128.0.2", request)
    assert engines.answered == 2


def test_requests_in_pieces_and_several_at_once_are_all_answered(engines):
    request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    assert ask(engines, "10.128.0.1", request[:9], request[9:] + request).count(b"HTTP/1.1 200 OK") == 2


def test_a_pod_that_hangs_takes_the_connection_and_answers_nothing(engines):
    engines.command({"hung": [True, ["10.128.0.1"]]})
    assert ask(engines, "10.128.0.1", b"GET /metrics HTTP/1.1\r\n\r\n") == b""
    engines.command({"hung": [False, ["10.128.0.1"]]})
    assert ask(engines, "10.128.0.1", b"GET /metrics HTTP/1.1\r\n\r\n")


def test_a_signed_change_is_taken_and_answered_with_the_proof(engines):
    request, value = signed()
    answer = ask(engines, "10.128.0.1", request)
    assert b"200 OK" in answer
    expected = hmac.new(b"secret", f"proof\n{value}".encode(), hashlib.sha256).hexdigest()
    assert f"Inflight-Proof: {expected}\r\n".encode() in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["max_num_seqs"] == 4
    page = ask(engines, "10.128.0.1", b"GET /metrics HTTP/1.1\r\n\r\n")
    assert b'inflight_max_num_seqs{model_name="fake"} 4\n' in page
    assert b'inflight_runtime_config_revision{model_name="fake"} 3\n' in page


@pytest.mark.parametrize(
    "request_",
    [
        patch("Bearer secret"),
        patch(""),
        signed(pod="uid-2")[0],
        signed(token="wrong")[0],
        signed(at=time.time() - 10_000)[0],
        signed(body=b'{"max_num_seqs": 4}')[0].replace(b": 4}", b": 5}"),
    ],
)
def test_a_call_for_another_pod_with_another_token_an_old_one_or_a_changed_one_is_refused(engines, request_):
    assert b"401" in ask(engines, "10.128.0.1", request_)
    assert engines.pods["10.128.0.1"].state.revision == 0


def test_an_address_without_a_named_pod_shows_metrics_and_takes_no_change(engines):
    assert b"200 OK" in ask(engines, "10.128.0.9", b"GET /metrics HTTP/1.1\r\n\r\n")
    assert b"401" in ask(engines, "10.128.0.9", patch("Bearer "))


def test_a_new_pod_at_an_old_address_starts_anew_and_a_token_alone_does_not(engines):
    engines.command({"waiting": [40, ["10.128.0.1"]]})
    engines.command({"pods": [["10.128.0.1", "uid-1", "other"]]})
    assert engines.pods["10.128.0.1"].state.waiting == 40
    engines.command({"pods": [["10.128.0.1", "uid-3", "other"]]})
    assert engines.pods["10.128.0.1"].state.waiting == 0

"""Reads of blocks from an engine that drains, over TCP, with a stand-in for that engine and its faults."""

import hashlib
import hmac
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from inflight_contract.kv_blocks import PATH, KVSource
from inflight_contract.model_blocks import SIGNATURE_HEADER
from inflight_engine.peers import reader as peer_reader
from inflight_engine.peers.reader import PeerReader
from inflight_engine.request import Request, SamplingParams
from inflight_engine.tier_loads import Read

BLOCK = 256
HASHES = [bytes([number]) * 16 for number in range(5)]
BLOCKS = {block_hash: bytes([100 + number]) * BLOCK for number, block_hash in enumerate(HASHES)}
TOKEN, POD = b"secret", "uid-1"


class Memory:
    """Stands in for host memory."""

    def __init__(self):
        self.rows = np.zeros((8, BLOCK), np.uint8)

    def row(self, place):
        return memoryview(self.rows[place])


class Peer:
    """Stands in for an engine that drains. `fault` changes (status, headers, body); None: it never answers."""

    def __init__(self):
        self.fault, self.asked = (lambda *answer: answer), []
        peer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                hashes = [body[at : at + 16] for at in range(0, len(body), 16)]
                peer.asked.append((self.path, hashes))
                answer = peer.fault(*peer.answer(self.headers["authorization"], body, hashes))
                if answer is None:
                    time.sleep(3)
                    return
                status, headers, content = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
                self.close_connection = True

            def log_message(self, *_): ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.source = KVSource(f"127.0.0.1:{self.server.server_port}", POD)

    def answer(self, authorization, body, hashes):
        """The answer, made here from the protocol's text."""
        pod, seconds, signature = (each.partition("=")[2] for each in authorization.split(" ")[1].split(","))
        lines = ("POST", PATH, pod, seconds, hashlib.sha256(body).hexdigest())
        assert signature == hmac.new(TOKEN, "\n".join(lines).encode(), "sha256").hexdigest()
        found = [BLOCKS[each] for each in hashes if each in BLOCKS]
        checksums = np.arange(len(found), dtype="<i8").tobytes()
        content = f"content\n{signature}\n{hashlib.sha256(checksums).hexdigest()}"
        data = checksums + b"".join(found)
        headers = {
            "content-length": len(data),
            SIGNATURE_HEADER: hmac.new(TOKEN, content.encode(), "sha256").hexdigest(),
        }
        return 200, headers, data


@pytest.fixture(autouse=True)
def _token(monkeypatch):
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", TOKEN.decode())


@pytest.fixture
def peer():
    peer = Peer()
    yield peer
    peer.server.shutdown()
    peer.server.server_close()


class Reading:
    def __init__(self):
        self.memory, self.now = Memory(), 1000.0
        self.woken = threading.Event()
        self.reader = PeerReader(self.memory, BLOCK, wake=self.woken.set, clock=lambda: self.now)

    def read(self, source, hashes=HASHES[:3], places=(5, 2, 7)):
        """The checksums of what has come."""
        self.woken.clear()
        self.reader.load(Read(7, list(hashes), list(places), source))
        assert self.woken.wait(10)
        (done,) = self.reader.take()
        assert (done.number, self.reader.busy, self.reader.num_reads) == (7, False, 0)
        return done.checksums

    def finds(self, source):
        request = Request(1, np.arange(3, dtype=np.int32), SamplingParams(max_tokens=1), 0.0, kv_source=source)
        return self.reader.finds(request, HASHES[0])


@pytest.fixture
def reading():
    reading = Reading()
    yield reading
    reading.reader.close()


def test_blocks_come_to_their_places(reading, peer):
    assert reading.read(peer.source) == [0, 1, 2]
    assert peer.asked == [(PATH, HASHES[:3])]
    for place, block_hash in zip((5, 2, 7), HASHES, strict=False):
        assert reading.memory.rows[place].tobytes() == BLOCKS[block_hash]
    assert (reading.reader.num_loaded, reading.reader.num_failed) == (3, 0)
    assert reading.reader.read_at == 1000.0


def test_of_blocks_that_the_other_engine_lacks_none_comes(reading, peer):
    assert reading.read(peer.source, [HASHES[0], b"?" * 16]) == [0]
    assert reading.read(peer.source, [b"?" * 16]) == []
    assert reading.reader.num_failed == 0


def change(**changes):
    return lambda status, headers, body: (status, {**headers, **changes}, body)


FAULTS = {
    "refuses": lambda status, headers, body: (421, {"content-length": 0}, b""),
    "cut in the checksums": lambda status, headers, body: (status, headers, body[:10]),
    "cut in a block": lambda status, headers, body: (status, headers, body[:-100]),
    "other length": lambda status, headers, body: (status, {**headers, "content-length": len(body) - 1}, body[:-1]),
    "too many": lambda status, headers, body: (status, {**headers, "content-length": 2 * len(body)}, body * 2),
    "no signature": lambda status, headers, body: (status, {"content-length": len(body)}, body),
    "wrong signature": change(**{SIGNATURE_HEADER: "0" * 64}),
    "other checksums": lambda status, headers, body: (status, headers, b"\1" + body[1:]),
    "hangs": lambda *answer: None,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_gives_no_blocks_and_a_rest(reading, peer, fault, monkeypatch):
    monkeypatch.setattr(peer_reader, "_ANSWER_SECONDS", 0.5)
    peer.fault = fault
    assert reading.read(peer.source) == []
    assert (reading.reader.num_loaded, reading.reader.num_failed) == (0, 1)
    asked = len(peer.asked)
    assert not reading.finds(peer.source)
    assert reading.read(peer.source) == [], "it rests"
    assert len(peer.asked) == asked
    peer.fault = lambda *answer: answer
    reading.now += 11
    assert reading.finds(peer.source)
    assert reading.read(peer.source) == [0, 1, 2]


def test_an_engine_that_is_gone_costs_nothing_but_a_try(reading, peer):
    peer.server.shutdown()
    peer.server.server_close()
    assert reading.read(peer.source) == []
    assert reading.reader.num_failed == 1


def test_requests_without_a_source_find_nothing(reading):
    assert not reading.finds(None)


def test_without_a_token_nothing_is_asked(reading, peer, monkeypatch):
    monkeypatch.delenv("INFLIGHT_ADMIN_TOKEN")
    assert reading.read(peer.source) == []
    assert peer.asked == []

"""Port-forwards over real sockets to a stand-in for the API server: every end of a connection reaches the client."""

import asyncio
import base64
import hashlib
import socket
import struct
import threading
import time

import pytest
from kubernetes.client import Configuration

from inflight_kubectl.access.connection import Connection
from inflight_kubectl.engines.engine_access import PROTOCOL, PortForward
from inflight_kubectl.load.answers import Answer
from inflight_kubectl.load.client import Client, DisconnectedError
from inflight_kubectl.output import Problem

ADDRESS = ("default", "pod", 8000)
PORT = struct.pack("<H", ADDRESS[2])
EVENT = b'data: {"choices": [{"text": "x", "finish_reason": null}]}\n\n'
STREAM = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
END = b'data: {"choices": [{"text": "y", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'


class ApiServer:
    """Stands in for the API server and a pod: takes websockets, and answers a request as `answer` says.

    Attributes:
        answer: called with the connection once its request has arrived.
        status: HTTP status of the handshake; with another status than 101 the websocket is refused.
        open: open connections.
    """

    def __init__(self, answer=None, status=101):
        self.answer, self.status, self.open = answer, status, 0

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=256)
        configuration = Configuration()
        configuration.host = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return PortForward(Connection(configuration, "here", "default"), lambda: [ADDRESS])

    async def __aexit__(self, *_):
        self.server.close()

    async def _serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if self.status != 101:
            body = b'{"kind": "Status", "message": "pods is forbidden", "reason": "Forbidden"}'
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (self.status, len(body), body))
            writer.close()
            return
        key = next(line for line in head.split("\r\n") if line.lower().startswith("sec-websocket-key")).split(": ")[1]
        accept = base64.b64encode(hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest())
        upgrade = "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        accepted = f"Sec-WebSocket-Accept: {accept.decode()}\r\nSec-WebSocket-Protocol: {PROTOCOL}\r\n\r\n"
        writer.write((upgrade + accepted).encode())
        self.send(writer, 0, PORT)
        self.send(writer, 1, PORT)
        self.open += 1
        try:
            received = b""
            while content := await self._message(reader):
                received += content[1:]
                if received.endswith(b"}"):
                    received = b""
                    await self.answer(self, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def _message(self, reader):
        """Returns the next binary message of the client, which masks it; empty when it closes."""
        first, length = await reader.readexactly(2)
        size = length & 127
        if size == 126:
            (size,) = struct.unpack(">H", await reader.readexactly(2))
        mask = await reader.readexactly(4)
        content = await reader.readexactly(size)
        return b"" if first & 15 == 8 else bytes(byte ^ mask[place % 4] for place, byte in enumerate(content))

    @staticmethod
    def send(writer, channel, content):
        size = len(content) + 1
        head = bytes((0x82, size)) if size < 126 else b"\x82\x7e" + struct.pack(">H", size)
        writer.write(head + bytes((channel,)) + content)


async def whole(server, writer):
    server.send(writer, 0, STREAM)
    for _ in range(20):
        server.send(writer, 0, EVENT)
        await writer.drain()
        await asyncio.sleep(0.005)
    server.send(writer, 0, END)
    writer.close()


async def ask(forward):
    answer = Answer(time.monotonic())
    async with Client(forward.url) as client:
        await client.ask({"stream": True}, answer)
    return answer


def threads():
    return [one for one in threading.enumerate() if one.name.startswith("port-forward")]


async def test_many_answers_stream_side_by_side_and_no_thread_or_connection_stays():
    server = ApiServer(whole)
    async with server as made:
        with made as forward:
            answers = await asyncio.gather(*(ask(forward) for _ in range(64)))
            assert {one.text for one in answers} == {"x" * 20 + "y"}
            assert forward.problem is None
        deadline = time.monotonic() + 60
        while (threads() or server.open) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (threads(), server.open) == ([], 0)


async def test_a_reset_connection_ends_the_answer_at_once():
    async def reset(server, writer):
        server.send(writer, 0, STREAM + EVENT)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with ApiServer(reset) as made:
        with made as forward, pytest.raises(Problem):
            await asyncio.wait_for(ask(forward), 60)


async def test_what_the_kubelet_says_is_the_problem_of_the_forward():
    async def nothing_listens(server, writer):
        server.send(writer, 1, b"dial tcp4 127.0.0.1:8000: connect: connection refused\n")
        await writer.drain()

    async with ApiServer(nothing_listens) as made:
        with made as forward:
            with pytest.raises(DisconnectedError):
                await asyncio.wait_for(ask(forward), 60)
            assert "port-forward to pod pod: dial tcp4" in forward.problem.what


async def test_a_refusal_of_the_api_server_is_the_problem_of_the_forward():
    async with ApiServer(status=403) as made:
        with made as forward:
            with pytest.raises(DisconnectedError):
                await asyncio.wait_for(ask(forward), 60)
            assert forward.problem.what == "forbidden: pods is forbidden"
            with pytest.raises(Problem, match="forbidden: pods is forbidden"):
                await asyncio.to_thread(forward.check)


async def test_closing_the_forward_ends_open_answers():
    async def slow(server, writer):
        server.send(writer, 0, STREAM + EVENT)
        await writer.drain()
        await asyncio.sleep(600)

    async with ApiServer(slow) as made:
        with made as forward:
            asking = asyncio.create_task(ask(forward))
            await asyncio.sleep(0.3)
        with pytest.raises(Problem):
            await asyncio.wait_for(asking, 60)
        with pytest.raises(DisconnectedError, match="ClientConnectorError"):
            await ask(forward)

"""A stand-in for an engine's API and for the forward to it: streams words at a pace over a real socket."""

import asyncio
import json
from contextlib import asynccontextmanager


class StandInForward:
    """Stands in for `PortForward`: its clients reach the stand-in engine on a loopback port."""

    def __init__(self, url):
        self.url = url
        self.headers = {}
        self.problem = None


class StandInEngine:
    """Attributes:
    wait, pace: seconds before the first token, and between tokens.
    status: of each answer; with another one than 200, `error` is its body.
    cut: whether streams end without their last event.
    bodies: of all requests.
    """

    def __init__(self, wait=0.0, pace=0.0, status=200, error="", cut=False):
        self.wait, self.pace, self.status, self.error, self.cut = wait, pace, status, error, cut
        self.bodies = []
        self.open = self.most = 0

    async def answer(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lengths = [line for line in head.splitlines() if line.lower().startswith("content-length")]
                body = await reader.readexactly(int(lengths[0].split(":")[1])) if lengths else b""
                if head.startswith("GET"):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    continue
                self.open += 1
                self.most = max(self.most, self.open)
                await self._stream(writer, json.loads(body))
                self.open -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _stream(self, writer, body):
        self.bodies.append(body)
        if self.status != 200:
            content = json.dumps({"error": {"message": self.error}}).encode()
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (self.status, len(content), content))
            return
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(self.wait)
        tokens = body["max_tokens"]
        for number in range(tokens):
            if number:
                await asyncio.sleep(self.pace)
            end = "length" if number == tokens - 1 else None
            self._event(writer, {"choices": [{"text": f"w{number} ", "finish_reason": end}]})
            await writer.drain()
        if not self.cut:
            self._event(writer, {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}})
            self._chunk(writer, b"data: [DONE]\n\n")
        self._chunk(writer, b"")

    def _event(self, writer, event):
        self._chunk(writer, f"data: {json.dumps(event)}\n\n".encode())

    def _chunk(self, writer, content):
        writer.write(b"%x\r\n%s\r\n" % (len(content), content))


@asynccontextmanager
async def serving(engine):
    """The forward to an engine that is served."""
    server = await asyncio.start_server(engine.answer, "127.0.0.1", 0)
    try:
        yield StandInForward(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()

"""A stand-in for an engine: HTTP answers as a test scripts them, no model."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import unquote

from tests.gateway.relay.fake_engine import frames_for
from tests.standin import TaskConnection
from tools.standin.connection import Connection, Request, listen


@dataclass
class Seen:
    """A request that reached the engine."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class FakeEngine:
    """Answers each request by `answer`: `ok`, `busy` (503), `close` (the connection, before a head), `hang`,
    `stream` or `progress` (the frames of the relay tests' engine).

    A stream has `events` events, one each `tick` seconds. Its end waits for `may_end`, which is set at first.
    """

    name: str
    answer: str = "ok"
    seen: list[Seen] = field(default_factory=list)
    address: str = ""
    tick: float = 0.05
    events: int = 40
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    cuts: list[int] = field(default_factory=list)
    """Frames before which the connection breaks, for the next answers with progress frames. Engines may share the
    list."""

    async def start(self) -> Self:
        self.may_end.set()
        self._open: set[_Connection] = set()
        self._server = await listen(lambda: _Connection(self, self._open))
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def stop(self) -> None:
        self._server.close()
        for each in [*self._open]:
            each.transport.close()

    @property
    def requests(self) -> list[Seen]:
        """Requests without the gateway's scrapes."""
        return [one for one in self.seen if one.path != "/metrics"]

    async def respond(self, request: Request, to: Connection) -> None:
        path = unquote(request.target.decode().partition("?")[0])
        headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
        self.seen.append(Seen(request.method.decode(), path, headers, request.body))
        if path == "/metrics":
            to.whole(b"", b"text/plain")
        elif self.answer == "busy":
            to.whole(b'{"error": {"message": "%s is full"}}' % self.name.encode(), status=b"503 Service Unavailable")
        elif self.answer == "close":
            to.transport.abort()
        elif self.answer == "progress":
            await self._progress(to)
        elif self.answer == "stream":
            await self._stream(to)
        elif self.answer != "hang":
            to.whole(json.dumps({"engine": self.name}).encode())

    async def _progress(self, to: Connection) -> None:
        assert self.seen[-1].headers["x-inflight-progress"] == "1"
        frames = frames_for(json.loads(self.seen[-1].body)).split(b"\n\n")[:-1]
        cut = self.cuts.pop() if self.cuts else len(frames)
        to.begin(progress=True)
        for frame in frames[:cut]:
            to.send(frame + b"\n\n")
            await asyncio.sleep(self.tick)
        if cut < len(frames):
            to.transport.abort()
        else:
            to.end()

    async def _stream(self, to: Connection) -> None:
        to.begin(progress=False, headers=f"x-engine: {self.name}\r\n".encode())
        for number in range(self.events):
            to.send(f"data: {self.name} {number}\n\n".encode())
            await asyncio.sleep(self.tick)
        await self.may_end.wait()
        to.send(b"data: [DONE]\n\n")
        to.end()


class _Connection(TaskConnection):
    """A connection that is among the engine's open ones."""

    def __init__(self, engine: FakeEngine, among: set[_Connection]) -> None:
        super().__init__(engine.respond)
        self._among = among

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._among.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._among.discard(self)


def headers_of(seen: Seen) -> dict[str, Any]:
    return {name.lower(): value for name, value in seen.headers.items()}

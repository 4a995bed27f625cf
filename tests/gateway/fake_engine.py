"""A stand-in for an engine: HTTP answers as a test scripts them, no model."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.gateway.relay.fake_engine import frames_for


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

    A stream has `events` events, one each `tick` seconds.
    """

    name: str
    answer: str = "ok"
    seen: list[Seen] = field(default_factory=list)
    address: str = ""
    tick: float = 0.05
    events: int = 40
    cuts: list[int] = field(default_factory=list)
    """Of the next answers with progress frames: the frame before which the connection breaks. Engines may share it."""

    async def start(self) -> FakeEngine:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"{host}:{port}"
        return self

    async def stop(self) -> None:
        await self._runner.cleanup()

    @property
    def requests(self) -> list[Seen]:
        """Without the gateway's scrapes."""
        return [one for one in self.seen if one.path != "/metrics"]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(Seen(request.method, request.path, dict(request.headers), await request.read()))
        if request.path == "/metrics":
            return web.Response(text="")
        if self.answer == "busy":
            return web.json_response({"error": {"message": f"{self.name} is full"}}, status=503)
        if self.answer == "close":
            assert request.transport is not None
            request.transport.abort()
            await asyncio.sleep(0.1)
        if self.answer == "hang":
            await asyncio.sleep(3600)
        if self.answer == "progress":
            return await self._progress(request)
        if self.answer == "stream":
            return await self._stream(request)
        return web.json_response({"engine": self.name})

    async def _progress(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["x-inflight-progress"] == "1"
        frames = frames_for(json.loads(self.seen[-1].body)).split(b"\n\n")[:-1]
        cut = self.cuts.pop() if self.cuts else len(frames)
        answer = web.StreamResponse(headers={"content-type": "text/event-stream", "x-inflight-progress": "1"})
        await answer.prepare(request)
        for frame in frames[:cut]:
            await answer.write(frame + b"\n\n")
            await asyncio.sleep(self.tick)
        if cut < len(frames):
            assert request.transport is not None
            request.transport.abort()
        return answer

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream", "x-engine": self.name})
        await answer.prepare(request)
        for number in range(self.events):
            await answer.write(f"data: {self.name} {number}\n\n".encode())
            await asyncio.sleep(self.tick)
        await answer.write(b"data: [DONE]\n\n")
        return answer


def headers_of(seen: Seen) -> dict[str, Any]:
    return {name.lower(): value for name, value in seen.headers.items()}

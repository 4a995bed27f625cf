"""A stand-in for an engine that checks bodies as the engine does, and notes what must never reach an engine."""

from __future__ import annotations

import json
from collections import Counter
from posixpath import normpath
from urllib.parse import unquote

from aiohttp import web
from pydantic import BaseModel, ValidationError

from inflight_engine.server.chat_schema import ChatCompletionRequest
from inflight_engine.server.errors import ApiError
from inflight_engine.server.schema import CompletionRequest, GenerateRequest
from tests.gateway.hostile.case import FORGED, RIGHT_KEY

_SCHEMAS: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/generate": GenerateRequest,
}

_FOR_OPERATORS = ("/metrics", "/ready", "/v1/runtime_config", "/admin")

_FRAME = b':t 0 17\ndata: {"created":1,"choices":[{"index":0,"delta":{"content":"fine"}}]}\n\n'
_WHOLE = b':t 0 17\n\n:f 0 stop\n\n:w 200\ndata: {"choices":[{"message":{"content":"fine"}}]}\n\n'
_STREAM = _FRAME * 3 + b":f 0 stop\ndata: {}\n\ndata: [DONE]\n\n"


class CheckingEngine:
    """Attributes: faults: what reached it and must not. answered: by path and status."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.answered: Counter[tuple[str, int]] = Counter()
        self.address = ""

    async def start(self) -> CheckingEngine:
        server = web.Server(self._handle, access_log=None, max_line_size=2**17, max_field_size=2**17)
        self._runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"{host}:{port}"
        return self

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/metrics" and "x-request-id" not in request.headers:
            return web.Response(text="")  # the picker's scrape
        self._check(request)
        answer = await self._answer(request, await request.read())
        self.answered[request.method, answer.status] += 1
        return answer

    def _check(self, request: web.BaseRequest) -> None:
        path = normpath("/" + unquote(request.raw_path.partition("?")[0]).lstrip("/"))
        if path in _FOR_OPERATORS or path.startswith("/admin/"):
            self.faults.append(f"{request.method} {request.raw_path}")
        for name, value in request.headers.items():
            if FORGED in value or RIGHT_KEY in value:
                self.faults.append(f"{name}: {value[:80]} ({request.method} {request.raw_path[:80]})")
        for name in (
            "x-gateway-destination-endpoint-subset",
            "x-inflight-avoid",
            "x-inflight-body",
            "x-inflight-anything",
        ):
            if name in request.headers:
                self.faults.append(f"{name}: {request.headers[name][:80]}")

    async def _answer(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        schema = _SCHEMAS.get(request.path)
        if request.method in ("GET", "HEAD") and request.path == "/v1/models":
            return web.json_response({"object": "list", "data": []})
        if schema is None or request.method != "POST":
            return _error(404 if schema is None else 405, f"no {request.method} {request.path[:50]}")
        try:
            asked = schema.model_validate(json.loads(body))
            getattr(asked, "check", lambda: None)()
        except (ValidationError, ValueError, RecursionError, ApiError) as error:
            return _error(400, f"the body: {type(error).__name__}")
        if request.headers.get("x-inflight-progress") != "1":
            return web.json_response({"choices": [{"message": {"content": "fine"}}]})
        if getattr(asked, "inflight_continuation", None) is not None:
            self.faults.append("a continuation that no engine began")
        headers = {"content-type": "text/event-stream", "x-inflight-progress": "1"}
        body = _STREAM if getattr(asked, "stream", False) else _WHOLE
        return web.Response(body=body, headers=headers)


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "invalid_request_error"}}, status=status)

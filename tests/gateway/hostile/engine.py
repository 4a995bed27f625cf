"""A stand-in for an engine that checks bodies as the engine does, and notes what must never reach an engine."""

from __future__ import annotations

import json
from posixpath import normpath
from urllib.parse import unquote

from pydantic import BaseModel, ValidationError

from inflight_contract.errors import ApiError
from inflight_engine.server.bodies.chat_schema import ChatCompletionRequest
from inflight_engine.server.bodies.pooling_schema import EmbeddingRequest, RerankRequest, ScoreRequest
from inflight_engine.server.bodies.schema import CompletionRequest, GenerateRequest
from inflight_engine.server.messages.requests import MessagesRequest
from inflight_engine.server.responses.requests import ResponsesRequest
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.hostile.case import FORGED, RIGHT_KEY
from tools.standin.connection import PROGRESS, Connection, Request

_SCHEMAS: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/generate": GenerateRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/score": ScoreRequest,
    "/rerank": RerankRequest,
}

_FOR_OPERATORS = ("/metrics", "/ready", "/v1/runtime_config", "/admin")

_INTERNAL = (
    "x-gateway-destination-endpoint-subset",
    "x-inflight-avoid",
    "x-inflight-body",
    "x-inflight-anything",
)

_FRAME = b':t 0 17\ndata: {"created":1,"choices":[{"index":0,"delta":{"content":"fine"}}]}\n\n'
_WHOLE = b':t 0 17\n\n:f 0 stop\n\n:w 200\ndata: {"choices":[{"message":{"content":"fine"}}]}\n\n'
_STREAM = _FRAME * 3 + b":f 0 stop\ndata: {}\n\ndata: [DONE]\n\n"


class CheckingEngine(FakeEngine):
    """An engine that checks its requests. Attributes: faults: what reached it and must not."""

    def __init__(self) -> None:
        super().__init__("checking")
        self.faults: list[str] = []

    async def respond(self, request: Request, to: Connection) -> None:
        if request.target.partition(b"?")[0] == b"/metrics" and not request.header(b"x-request-id"):
            to.whole(b"", b"text/plain")  # the picker's scrape
            return
        target = request.target.decode("latin-1")
        self._check(request, target)
        self._respond(request, unquote(target.partition("?")[0]), to)

    def _check(self, request: Request, target: str) -> None:
        what = f"{request.method.decode()} {target}"
        path = normpath("/" + unquote(target.partition("?")[0]).lstrip("/"))
        if path in _FOR_OPERATORS or path.startswith("/admin/"):
            self.faults.append(what)
        for name, value in ((name.decode(), value.decode("latin-1")) for name, value in request.headers):
            if FORGED in value or RIGHT_KEY in value:
                self.faults.append(f"{name}: {value[:80]} ({what[:90]})")
            if name in _INTERNAL:
                self.faults.append(f"{name}: {value[:80]}")

    def _respond(self, request: Request, path: str, to: Connection) -> None:
        schema = _SCHEMAS.get(path)
        if request.method in (b"GET", b"HEAD") and path == "/v1/models":
            to.whole(b'{"object": "list", "data": []}')
            return
        if schema is None or request.method != b"POST":
            _refuse(to, b"405 X" if schema else b"404 X", f"no {request.method.decode()} {path[:50]}")
            return
        try:
            asked = schema.model_validate(json.loads(request.body))
            getattr(asked, "check", lambda: None)()
        except (ValidationError, ValueError, RecursionError, ApiError) as error:
            _refuse(to, b"400 X", f"the body: {type(error).__name__}")
            return
        if request.header(PROGRESS) != b"1":
            to.whole(b'{"choices": [{"message": {"content": "fine"}}]}')
            return
        if getattr(asked, "inflight_continuation", None) is not None:
            self.faults.append("a continuation that no engine began")
        to.streamed(_STREAM if getattr(asked, "stream", False) else _WHOLE, progress=True)


def _refuse(to: Connection, status: bytes, message: str) -> None:
    error = {"error": {"message": message, "type": "invalid_request_error"}}
    to.whole(json.dumps(error).encode(), status=status)

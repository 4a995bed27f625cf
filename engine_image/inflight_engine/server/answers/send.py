"""Whole responses as ASGI messages."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Scope, Send

_SERVER_SEND = "inflight.server_send"


def keep_server_send(scope: Scope, send: Send) -> None:
    """`send` is the server's own, before anything wraps it."""
    scope[_SERVER_SEND] = send


def server_send(scope: Scope) -> Send:
    """For bodies of streams: all that wraps it looks at heads only, and would be called for every event."""
    send: Send = scope[_SERVER_SEND]
    return send


def server_host(scope: Scope) -> str:
    """The address of this server that the client has reached; empty: not known."""
    return (scope.get("server") or ("",))[0]


async def send_all(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """A whole response."""
    raw = raw_headers({**headers, "content-length": str(len(body))})
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def raw_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]

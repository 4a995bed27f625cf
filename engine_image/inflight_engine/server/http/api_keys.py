"""API keys of the engine itself, for servers without a gateway before them."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from inflight_contract.errors import ApiError
from inflight_engine.server.errors import error_response
from inflight_settings.server import PROBE_PATHS

_OPEN = frozenset({*PROBE_PATHS, "/ping", "/load", "/version", "/v1/runtime_config"})
"""Paths without keys: probes, and calls of the operator, which have a token of their own, as those below /admin/."""


class ApiKeys:
    """The keys that requests need; none: they need none."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def refusal(self, headers: Headers) -> ApiError | None:
        """Why a request with these headers is refused; None: it may pass."""
        if not self._digests:
            return None
        # All are compared, so that the time does not tell which one is alike.
        given = _keys_of(headers)
        if sum(hmac.compare_digest(_digest(key), each) for key in given for each in self._digests) > 0:
            return None
        message = "a key is required: Authorization: Bearer KEY, one of those of --api-key"
        return ApiError(401, message, code="invalid_api_key")


class ApiKeyMiddleware:
    """Refuses requests without one of the keys, before their body is read. Plain ASGI."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = ApiKeys(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_open(scope):
            refused = self._keys.refusal(Headers(scope=scope))
            if refused is not None:
                await error_response(refused, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_open(scope: Scope) -> bool:
    path: str = scope["path"]
    return path in _OPEN or path.startswith("/admin/")


def _keys_of(headers: Headers) -> list[str]:
    """Keys of a request: clients of Anthropic's API may send both headers, each with a key of its own."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    bearer = [token.strip()] if scheme.lower() == "bearer" else []
    return [*bearer, *headers.getlist("x-api-key")]


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()

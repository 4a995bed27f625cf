"""The admin token: from the environment or a file, read afresh on each use so that rotation needs no restart."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from inflight_engine.server.errors import ApiError

VARIABLE = "INFLIGHT_ADMIN_TOKEN"
FILE_VARIABLE = "INFLIGHT_ADMIN_TOKEN_FILE"


class AdminRoute(APIRoute):
    """An endpoint for admins: nothing of a request is read before its token was checked."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            check_admin_token(request.headers.get("authorization"))
            return await handle(request)

        return checked


def check_admin_token(authorization: str | None) -> None:
    """Let through a call with `Authorization: Bearer TOKEN`.

    Raises:
        ApiError: 403 when this server has no token, 401 when the call's is missing or wrong.
    """
    token = _configured()
    if not token:
        raise ApiError(
            403,
            f"admin calls are off: this server has no token; set ${VARIABLE}, or ${FILE_VARIABLE} to a file with one",
            code="admin_disabled",
        )
    scheme, _, given = (authorization or "").partition(" ")
    # Bytes are compared, in the header those that were sent: a token may hold what is no text.
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode("latin-1").strip(), token):
        raise ApiError(
            401,
            "admin calls need the header `Authorization: Bearer TOKEN` with this server's admin token",
            code="invalid_admin_token",
            headers={"www-authenticate": "Bearer"},
        )


def _configured() -> bytes:
    token = os.fsencode(os.environ.get(VARIABLE, "")).strip()
    path = os.environ.get(FILE_VARIABLE)
    if token or not path:
        return token
    try:
        return Path(path).read_bytes().strip()
    except OSError as error:
        raise ApiError(
            403, f"admin calls are off: the file named by ${FILE_VARIABLE} cannot be read: {error.strerror}"
        ) from None

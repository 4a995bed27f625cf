"""The admin token: from the environment or a file, read on each use so that rotation needs no restart."""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from inflight_engine.server.admin import signature as admin_signature
from inflight_engine.server.errors import ApiError, describe_invalid, error_response

VARIABLE = "INFLIGHT_ADMIN_TOKEN"
FILE_VARIABLE = "INFLIGHT_ADMIN_TOKEN_FILE"
POD_VARIABLE = "INFLIGHT_POD_UID"


class AdminRoute(APIRoute):
    """An endpoint for admins: the token or signature of a request is checked before any other part of it is used."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            token = _configured()
            scheme, _, parameters = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != admin_signature.SCHEME.lower():
                _check_bearer(scheme, parameters, token)
                return await handle(request)
            call = admin_signature.parse(parameters)
            admin_signature.check_target(call, os.environ.get(POD_VARIABLE, ""), time.time())
            admin_signature.check_signature(call, token, request.method, request.url.path, await request.body())
            # Errors too: the caller must be able to verify that this pod rejected the call.
            try:
                response = await handle(request)
            except ApiError as error:
                response = error_response(error)
            except RequestValidationError as error:
                response = error_response(describe_invalid(error))
            response.headers[admin_signature.PROOF_HEADER] = admin_signature.proof(token, call.signature)
            return response

        return checked


def _check_bearer(scheme: str, given: str, token: bytes) -> None:
    # Compares bytes, in the header as sent: a token may not be valid text.
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode("latin-1").strip(), token):
        raise ApiError(
            401,
            "admin calls need the header `Authorization: Bearer TOKEN` with this server's admin token",
            code="invalid_admin_token",
            headers={"www-authenticate": "Bearer"},
        )


def _configured() -> bytes:
    """The token.

    Raises:
        ApiError: 403, this server has no token.
    """
    token = os.fsencode(os.environ.get(VARIABLE, "")).strip()
    path = os.environ.get(FILE_VARIABLE)
    if not token and path:
        try:
            token = Path(path).read_bytes().strip()
        except OSError as error:
            raise ApiError(
                403, f"admin calls are off: the file named by ${FILE_VARIABLE} cannot be read: {error.strerror}"
            ) from None
    if not token:
        raise ApiError(
            403,
            f"admin calls are off: this server has no token; set ${VARIABLE}, or ${FILE_VARIABLE} to a file with one",
            code="admin_disabled",
        )
    return token

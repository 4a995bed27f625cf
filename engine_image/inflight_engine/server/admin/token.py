"""Routes of admins: the token or signature of a request is checked before any other part of it is used."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from inflight_contract.admin_signature import PROOF_HEADER
from inflight_contract.admin_token import prove, signature_of
from inflight_contract.errors import ApiError
from inflight_engine.server.errors import describe_invalid, error_response


class AdminRoute(APIRoute):
    """An endpoint for admins."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            signed = signature_of(request.headers.get("authorization", ""))
            if signed is None:
                return await handle(request)
            proof = prove(signed, request.method, request.url.path, await request.body())
            # Errors too: the caller must be able to verify that this pod rejected the call.
            try:
                response = await handle(request)
            except ApiError as error:
                response = error_response(error)
            except RequestValidationError as error:
                response = error_response(describe_invalid(error))
            response.headers[PROOF_HEADER] = proof
            return response

        return checked

"""Bodies are read as the gateway reads them.

The gateway counts what it reads of a body, so an engine must not accept one that the gateway cannot read: both use
msgspec, which takes JSON as RFC 8259 has it, in UTF-8 without a byte order mark. `json.loads` also takes UTF-16, NaN
and half of a surrogate pair. Of several fields of a name, both take the last one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class StrictJsonRoute(APIRoute):
    """A route whose body is strict JSON: for `APIRouter(route_class=...)`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_Request(request.scope, request.receive))

        return handle


class _Request(Request):
    async def json(self) -> Any:
        return decoded(await self.body())


def decoded(body: bytes) -> Any:
    """The value of a body.

    Raises:
        json.JSONDecodeError: it is no JSON; what FastAPI expects.
    """
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        why = "it is nested too deeply"
    except UnicodeDecodeError:
        why = "it is not UTF-8"
    except ValueError as error:
        why = str(error).removeprefix("JSON is malformed: ")
        if _SURROGATE.search(body):
            why += ", or a string holds half of a surrogate pair"
    raise json.JSONDecodeError(why, "", 0)

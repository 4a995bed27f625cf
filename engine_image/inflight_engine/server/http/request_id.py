"""The id of a request: the client's header X-Request-Id, or one of its own; the response has it in the same header.

As in vLLM the answer's `id` is made of it, so that one id finds a request in the logs of client, gateway and engine.
"""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers
from starlette.types import Scope

REQUEST_ID_HEADER = "x-request-id"

_KEY = "inflight.request_id"
_USABLE = re.compile(r"[!-~]{1,128}")


def give_request_id(scope: Scope) -> str:
    """Set the id of a new request. A header that is not one word of at most 128 ASCII characters is ignored."""
    given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
    scope[_KEY] = chosen = given if _USABLE.fullmatch(given) else uuid.uuid4().hex
    return chosen


def request_id(scope: Scope) -> str:
    """The id of a request, set by `give_request_id`."""
    chosen: str = scope[_KEY]
    return chosen

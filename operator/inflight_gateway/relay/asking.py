"""The request of one attempt to the inner listener."""

from __future__ import annotations

import re
import uuid

from inflight_gateway.relay.client import Request
from inflight_gateway.relay.heads import Headers, find, request_head, without
from inflight_gateway.relay.history import History
from inflight_gateway.request import headers as names
from inflight_gateway.request.body import NO_FIELDS, Body, to_header

_ATTEMPT = names.ATTEMPT.encode()
_AVOID = names.AVOID.encode()
_BODY = names.BODY.encode()
_OWN_REQUEST_ID = names.OWN_REQUEST_ID.encode()
_PROGRESS = names.PROGRESS.encode()
_REQUEST_ID = names.REQUEST_ID.encode()

_READABLE = re.compile(rb"[!-~]{1,128}")


def attempt_head(request: Request, request_id: str, length: int, fields: Body | None, history: History) -> bytes:
    """The head for a body of `length` bytes.

    Args:
        request_id: the gateway's own.
        fields: of this body; None: an engine refuses it, and is asked for no progress frames.
        history: of the request, this attempt included.
    """
    headers = [
        *request.headers,
        (b"content-length", b"%d" % length),
        (_OWN_REQUEST_ID, request_id.encode()),
        (_ATTEMPT, b"%d" % history.number),
        (_BODY, to_header(fields or NO_FIELDS)),
    ]
    if fields is not None:
        headers.append((_PROGRESS, b"1"))
    avoided = ",".join(history.avoid)
    if avoided:
        headers.append((_AVOID, avoided.encode("latin-1")))
    return request_head(request.method, request.target, headers)


def with_readable_id(headers: Headers) -> Headers:
    """The same headers, with a new X-Request-Id if picker and engine, which sign and verify it, could read the client's
    differently."""
    if _READABLE.fullmatch(find(headers, _REQUEST_ID) or b""):
        return headers
    return [*without(headers, _REQUEST_ID), (_REQUEST_ID, uuid.uuid4().hex.encode())]

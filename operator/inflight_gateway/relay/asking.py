"""The request of one attempt to the inner listener."""

from __future__ import annotations

from collections.abc import Iterable

from inflight_gateway import headers as names
from inflight_gateway.relay.client import Request
from inflight_gateway.relay.heads import request_head

_ATTEMPT = names.ATTEMPT.encode()
_AVOID = names.AVOID.encode()
_OWN_REQUEST_ID = names.OWN_REQUEST_ID.encode()
_PROGRESS = names.PROGRESS.encode()


def attempt_head(
    request: Request, request_id: str, length: int, number: int, avoid: Iterable[str], *, progress: bool
) -> bytes:
    """The head for a body of `length` bytes.

    Args:
        request_id: the gateway's own.
        number: of the attempt, from 1.
        avoid: endpoints that failed this request.
        progress: ask for progress frames.
    """
    headers = [
        *request.headers,
        (b"content-length", b"%d" % length),
        (_OWN_REQUEST_ID, request_id.encode()),
        (_ATTEMPT, b"%d" % number),
    ]
    if progress:
        headers.append((_PROGRESS, b"1"))
    avoided = ",".join(avoid)
    if avoided:
        headers.append((_AVOID, avoided.encode("latin-1")))
    return request_head(request.method, request.target, headers)

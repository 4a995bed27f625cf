"""The head of a request to an engine: that of the client, with the signed tenant."""

from __future__ import annotations

import re
import uuid

from inflight_base.http.heads import Headers, find, request_head, without
from inflight_gateway.relay.http.client import Request
from inflight_gateway.request import headers as names
from inflight_gateway.tenants.signature import EngineHeaders
from inflight_gateway.types import ServiceConfig

_REQUEST_ID = names.REQUEST_ID.encode()
_PROGRESS = "1"

_READABLE = re.compile(rb"[!-~]{1,128}")


def external_id(request: Request) -> str:
    """Returns the X-Request-Id of a request, which Envoy made or took from the client; a new one, which then is in the
    request's headers, where it cannot be signed and verified alike."""
    given = find(request.headers, _REQUEST_ID) or b""
    if not _READABLE.fullmatch(given):
        given = uuid.uuid4().hex.encode()
        request.headers = [*without(request.headers, _REQUEST_ID), (_REQUEST_ID, given)]
    return given.decode()


def engine_headers(
    request: Request, config: ServiceConfig, tenant: str, signing: EngineHeaders, progress: str = ""
) -> Headers:
    """Returns the headers for an engine but those on the body: signed now, without what the gateway has checked.

    Args:
        progress: value of the header that asks for progress frames; empty: without it.
    """
    removed = [name.encode() for name in signing.to_remove(config)]
    headers = without(request.headers, *removed) if removed else request.headers
    signed = signing.to_set(config, tenant, external_id(request), progress)
    if progress:
        signed = (*signed, (names.PROGRESS, progress))
    return [*headers, *((name.encode(), value.encode("latin-1")) for name, value in signed)]


def generation_head(
    request: Request,
    config: ServiceConfig,
    tenant: str,
    signing: EngineHeaders,
    length: int,
    target: bytes = b"",
    *,
    prefill: bool = False,
) -> bytes:
    """Returns the head of a generation request, which asks for progress frames.

    Args:
        length: bytes of the body. target: in place of the client's.
        prefill: the answer goes on at another engine.
    """
    headers = engine_headers(request, config, tenant, signing, _PROGRESS)
    own = [(b"content-length", b"%d" % length), *([(names.HAND_OVER.encode(), b"1")] if prefill else [])]
    return request_head(request.method, target or request.target, [*headers, *own])

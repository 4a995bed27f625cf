"""Blocks of the model's weights, for engines of the same service: see `inflight_contract.model_blocks`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from inflight_contract.admin_signature import content_proof
from inflight_contract.admin_token import configured, signature_of
from inflight_contract.errors import ApiError
from inflight_contract.model_blocks import CHECKSUMS_HEADER, PATH, SIGNATURE_HEADER
from inflight_engine.server.admin.token import AdminRoute
from inflight_engine.server.service import Service, ServiceOf

if TYPE_CHECKING:
    from inflight_engine.models.remote.sharing import SharedBlock  # has numpy, which takes long to import

router = APIRouter(route_class=AdminRoute)

_CHUNK_BYTES = 256 << 10
_WAIT_SECONDS = 1.0
_LOOK_SECONDS = 0.05
_SEND_SECONDS = 30.0
"""Time to send a block: a peer that reads slower keeps others out."""

Number = Annotated[int, Path(ge=0, lt=1 << 40)]

log = logging.getLogger(__name__)


@router.get(PATH)
async def block(entry: str, number: Number, request: Request, service: ServiceOf) -> Response:
    """The bytes of a block."""
    found = await _find(service, entry, number)
    if found is None:
        raise _missing(service)
    headers = {CHECKSUMS_HEADER: found.checksums, "content-length": str(found.size)}
    signed = signature_of(request.headers.get("authorization", ""))
    if signed is not None:
        headers[SIGNATURE_HEADER] = content_proof(configured(), signed.signature, found.checksums)
    await service.peer_reads.begin()
    return _BlockResponse(service.peer_reads.send(_parts(found)), service.peer_reads.end, headers)


@router.head(PATH)
async def has_block(entry: str, number: Number, service: ServiceOf) -> Response:
    """Answers whether the block is here. While the model loads, it waits for the block for a second."""
    until = time.monotonic() + _WAIT_SECONDS
    while await _find(service, entry, number) is None:
        missing = _missing(service)
        if missing.status != 425 or time.monotonic() > until:
            raise missing
        await asyncio.sleep(_LOOK_SECONDS)
    return Response()


async def _find(service: Service, entry: str, number: int) -> SharedBlock | None:
    blocks = service.shared_blocks
    if blocks is None:
        return None
    try:
        return await asyncio.to_thread(blocks.find, entry, number)
    except OSError as error:
        log.warning("the model cache cannot be read for a peer: %s", error.strerror or error)
        return None


def _missing(service: Service) -> ApiError:
    if service.config.engine.peers_file is None:
        return ApiError(404, "this engine shares no weights: it has no --peers-file", code="no_peers")
    if service.session.first_ready.done():
        return ApiError(404, "this engine does not have this block of weights", code="no_block")
    return ApiError(425, "this engine loads its model, and does not have this block yet", code="loading")


class _BlockResponse(StreamingResponse):
    """Sends a block, and says when that has ended, however it did."""

    def __init__(self, parts: AsyncIterator[bytes], ended: Callable[[], None], headers: dict[str, str]) -> None:
        super().__init__(parts, media_type="application/octet-stream", headers=headers)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await super().__call__(scope, receive, send)
        finally:
            self._ended()


async def _parts(block: SharedBlock) -> AsyncIterator[bytes]:
    at = 0
    while at < block.size:
        part = await asyncio.to_thread(block.part, at, _CHUNK_BYTES)
        at += len(part)
        yield part

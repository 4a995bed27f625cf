"""Blocks of keys and values, for engines of the same service: see `inflight_contract.kv_blocks`."""

from __future__ import annotations

from hashlib import sha256

from fastapi import APIRouter, Request, Response

from inflight_contract.admin_signature import content_proof
from inflight_contract.admin_token import configured, signature_of
from inflight_contract.errors import bad_request
from inflight_contract.kv_blocks import MOST_BLOCKS, PATH
from inflight_contract.model_blocks import SIGNATURE_HEADER
from inflight_engine.block_events import HASH_SIZE
from inflight_engine.server.admin.token import AdminRoute
from inflight_engine.server.service import ServiceOf

router = APIRouter(route_class=AdminRoute)


@router.post(PATH)
async def blocks(request: Request, service: ServiceOf) -> Response:
    """The leading blocks of these hashes that this engine has."""
    hashes = await request.body()
    if not hashes or len(hashes) % HASH_SIZE or len(hashes) > MOST_BLOCKS * HASH_SIZE:
        raise bad_request(f"the body has to be 1 to {MOST_BLOCKS} hashes of {HASH_SIZE} bytes")
    checksums, data = await service.handover.read(hashes)
    response = Response(checksums + data, media_type="application/octet-stream")
    signed = signature_of(request.headers.get("authorization", ""))
    if signed is not None:
        proof = content_proof(configured(), signed.signature, sha256(checksums).hexdigest())
        response.headers[SIGNATURE_HEADER] = proof
    return response

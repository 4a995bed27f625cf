"""Live limits and draining, for the operator."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from inflight_engine.messages import EngineReady
from inflight_engine.scheduling.limits import LimitError, Limits, StaleRevisionError
from inflight_engine.server.admin_token import check_admin_token
from inflight_engine.server.endpoint import ServiceOf
from inflight_engine.server.errors import ApiError, bad_request

router = APIRouter()


async def _admin(request: Request) -> None:
    check_admin_token(request.headers.get("authorization"))


class LimitsChange(BaseModel):
    """Body of PATCH /v1/runtime_config: any subset."""

    model_config = ConfigDict(extra="forbid", strict=True)

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    # What the message to the engine can carry.
    revision: Annotated[int, Field(lt=2**63)] | None = None


@router.get("/v1/runtime_config")
async def runtime_config(service: ServiceOf) -> Response:
    """Capacities, live limits and their revision, and the shape of the KV cache."""
    if service.limits is None or service.engine is None:
        raise ApiError(503, "the model is still loading", code="loading", retry_after=1)
    return JSONResponse(_describe(service.limits, service.engine))


@router.patch("/v1/runtime_config")
async def change_runtime_config(
    change: LimitsChange, service: ServiceOf, _: Annotated[None, Depends(_admin)]
) -> Response:
    """Answers with what is in force after the engine applied it."""
    try:
        limits = await service.change_limits(
            max_num_seqs=change.max_num_seqs,
            max_num_batched_tokens=change.max_num_batched_tokens,
            revision=change.revision,
        )
    except LimitError as error:
        raise bad_request(str(error), str(error).split()[0]) from None
    except StaleRevisionError as error:
        raise ApiError(409, str(error), "revision", "stale_revision") from None
    return JSONResponse(_describe(limits, service.engine_ready.result()))


@router.post("/admin/drain")
async def drain(request: Request, service: ServiceOf, _: Annotated[None, Depends(_admin)]) -> Response:
    """Begin to drain, as SIGTERM does; answers at once."""
    request.app.state.drain()
    return JSONResponse({"status": "draining", "running": service.stats.num_running}, status_code=202)


def _describe(limits: Limits, engine: EngineReady) -> dict[str, Any]:
    """`largest_batch_tokens`: tokens that the KV cache holds, over all requests."""
    return {
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "revision": limits.revision,
        "capacity": {
            "max_num_seqs": engine.capacity.max_num_seqs,
            "max_num_batched_tokens": engine.capacity.max_num_batched_tokens,
        },
        "kv_cache": {
            "bytes_per_token": engine.kv_bytes_per_token,
            "num_blocks": engine.num_blocks,
            "block_size": engine.block_size,
            "largest_batch_tokens": engine.num_blocks * engine.block_size,
        },
    }

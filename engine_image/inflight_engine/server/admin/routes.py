"""Public runtime information; changes of limits, drain and the scheduling record for the operator."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from inflight_contract.errors import ApiError
from inflight_engine.messages import EngineReady
from inflight_engine.server.admin.record import RecordResponse, flushed_record
from inflight_engine.server.admin.token import AdminRoute
from inflight_engine.server.engine.phase import Phase
from inflight_engine.server.service import Service, ServiceOf
from inflight_settings.limits import Limits, PartialLimits
from inflight_settings.scheduling import ServiceClass
from inflight_settings.setting import settings_of

router = APIRouter()
admin_router = APIRouter(route_class=AdminRoute)

Weight = Annotated[float, Field(gt=0, le=settings_of(ServiceClass)["weight"].le)]


class RuntimeConfigChange(BaseModel):
    """Body of PATCH /v1/runtime_config: any subset."""

    model_config = ConfigDict(extra="forbid", strict=True)

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    # Range of the message to the engine.
    revision: Annotated[int, Field(lt=2**63)] | None = None
    class_weights: dict[str, Weight] | None = None


@router.get("/v1/runtime_config")
async def runtime_config(service: ServiceOf) -> Response:
    """State (awake or asleep), capacities, live limits and their revision, the shape of the KV cache, and how requests
    are scheduled and sampled by default."""
    session = service.session
    if session.runtime.limits is None or session.ready is None:
        raise session.not_ready()
    return JSONResponse(_describe(service, session.runtime.limits, session.ready))


@admin_router.patch("/v1/runtime_config")
async def change_runtime_config(change: RuntimeConfigChange, service: ServiceOf) -> Response:
    """Answers with what is in force after the engine applied it."""
    session = service.session
    if session.ready is None or session.phase is not Phase.READY:
        raise session.not_ready()
    limits = PartialLimits(change.max_num_seqs, change.max_num_batched_tokens)
    await session.runtime.change(limits, change.revision, change.class_weights or {}, session.ready.capacity)
    return await runtime_config(service)


@admin_router.post("/admin/drain")
async def drain(request: Request, service: ServiceOf) -> Response:
    """Begin to drain, as SIGTERM does; answers at once."""
    request.app.state.drain()
    return JSONResponse({"status": "draining", "running": service.session.stats.num_running}, status_code=202)


@admin_router.post("/admin/sleep")
async def sleep(service: ServiceOf) -> Response:
    """Give back the memory of the KV cache until the next request; answers when it is given back."""
    session = service.session
    if session.ready is None or session.phase is not Phase.READY:
        raise session.not_ready()
    if not session.ready.runner.can_sleep:
        raise ApiError(
            409, "this engine cannot sleep: only one on a CPU with tensor_parallel_size 1 can", code="cannot_sleep"
        )
    await session.sleeping.sleep()
    return JSONResponse({"state": "asleep"})


@admin_router.post("/admin/wake")
async def wake(service: ServiceOf) -> Response:
    """End the sleep as a request would: the engine sleeps again after as long without requests."""
    session = service.session
    if session.phase is not Phase.READY:
        raise session.not_ready()
    session.sleeping.used(time.monotonic())
    return JSONResponse({"state": "awake"})


@admin_router.get("/admin/record")
async def record(service: ServiceOf) -> Response:
    """The record up to now, for `inflight-engine replay`."""
    return RecordResponse(*await flushed_record(service.session))


def _describe(service: Service, limits: Limits, engine: EngineReady) -> dict[str, Any]:
    """`largest_batch_tokens`: tokens that the KV cache holds, over all requests."""
    runner, defaults = engine.runner, service.sampling_defaults
    return {
        "state": "asleep" if service.session.sleeping.asleep else "awake",
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "revision": service.session.runtime.revision,
        "capacity": {
            "max_num_seqs": engine.capacity.max_num_seqs,
            "max_num_batched_tokens": engine.capacity.max_num_batched_tokens,
        },
        "kv_cache": {
            "bytes_per_token": runner.kv_bytes_per_token,
            "num_blocks": runner.num_blocks,
            "block_size": runner.block_size,
            "largest_batch_tokens": runner.num_cache_tokens,
        },
        "scheduling": _describe_scheduling(service),
        "default_sampling_params": None if defaults is None else asdict(defaults),
    }


def _describe_scheduling(service: Service) -> dict[str, Any]:
    engine = service.config.engine
    return {
        "policy": engine.policy,
        "ttft_target": engine.ttft_target,
        "ttft_per_1k_tokens": engine.ttft_per_1k_tokens,
        "late_share": engine.late_share,
        "shed_after": service.config.shed_after,
        "preemption": engine.preemption,
        "preemption_victim": engine.preemption_victim,
        "prefix_caching": engine.prefix_caching,
        "classes": [
            {
                "name": service_class.name,
                "weight": service.session.runtime.class_weights[service_class.name],
                "priority": service_class.priority,
                "ttft_target": service_class.ttft_target,
                "tpot_target": service_class.tpot_target,
                "max_queued_requests": service_class.max_queued_requests,
                "shed_after": service_class.shed_after,
                "request_timeout": service_class.request_timeout,
            }
            for service_class in engine.classes
        ],
    }


_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def elsewhere(admin_port: int, *, metrics: bool) -> APIRouter:
    """Routes of the serving port for paths on the admin port: 404 with the port. `metrics`: /metrics is there too."""
    router = APIRouter()

    async def moved(request: Request) -> Response:
        path = request.url.path
        raise ApiError(
            404, f"{request.method} {path} is served on port {admin_port} (--admin-port) only", code="admin_port"
        )

    router.add_api_route("/v1/runtime_config", moved, methods=["PATCH"])
    router.add_api_route("/admin/{rest:path}", moved, methods=_METHODS)
    if metrics:
        router.add_api_route("/metrics", moved, methods=["GET"])
    return router

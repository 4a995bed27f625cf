"""/health: is there progress? /ready: are requests taken? /metrics. None of them costs the engine anything."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from inflight_engine.server.endpoint import ServiceOf
from inflight_engine.server.service import Phase

STALL_SECONDS = 120.0
"""Without a step for so long, while there is work, the engine hangs; the longest steps, a full prefill budget on a CPU,
take seconds."""

router = APIRouter()


def health_status(phase: Phase, *, draining: bool, has_work: bool, seconds_since_progress: float) -> tuple[int, str]:
    """HTTP status and one word. Loading is healthy: only a start-up probe can know how long it may take."""
    if phase is Phase.FAILED:
        return 503, "failed"
    if phase is Phase.LOADING:
        return 200, "loading"
    if has_work and seconds_since_progress > STALL_SECONDS:
        return 503, "stalled"
    return 200, "draining" if draining else "ok"


@router.get("/health")
async def health(service: ServiceOf) -> Response:
    """200 when the engine process lives and makes progress, or has nothing to do."""
    status, word = health_status(
        service.phase,
        draining=service.draining,
        has_work=service.has_work,
        seconds_since_progress=time.monotonic() - service.last_progress,
    )
    return JSONResponse(
        {
            "status": word,
            "queue_size": service.num_waiting,
            "running": service.stats.num_running,
            "kv_cache_usage": service.stats.kv_usage,
        },
        status_code=status,
    )


@router.get("/ready")
async def ready(service: ServiceOf) -> Response:
    """200 when requests should be sent here; 503 says what it waits for."""
    if service.phase is Phase.READY and not service.draining:
        return JSONResponse({"status": "ready"})
    reason = {
        Phase.LOADING: f"waiting for model {service.config.engine.model} to load "
        f"({time.monotonic() - service.started:.0f} s so far)",
        Phase.FAILED: "the engine process is gone; this server is ending",
        Phase.READY: "draining: running requests finish, then this server ends",
    }[service.phase]
    word = "draining" if service.draining else service.phase.value
    return JSONResponse({"status": word, "reason": reason}, status_code=503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus text format."""
    registry: CollectorRegistry = request.app.state.registry
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

"""/health: is there progress? /ready: are requests taken? /metrics. None of them adds load to the engine."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from inflight_engine.server.engine.phase import Phase
from inflight_engine.server.service import Service, ServiceOf

HELD_SECONDS = 1.6
"""Longest wait for an answer of `/ready` while the model loads. The start-up probe of a pod asks every 2 s, with a
timeout of as long: it learns at once of a model that has loaded, and not up to 2 s later."""

router = APIRouter()
metrics_router = APIRouter()

MetricNames = Annotated[list[str] | None, Query(alias="name[]")]


def health_status(phase: Phase, *, draining: bool, stalled: bool) -> tuple[int, str]:
    """HTTP status and one word. Loading is healthy: only the start-up probe bounds its duration. So is a restart of the
    engine process, which is bounded."""
    if phase is Phase.FAILED:
        return 503, "failed"
    if phase is not Phase.READY:
        return 200, phase.value
    if stalled:
        return 503, "stalled"
    return 200, "draining" if draining else "ok"


def unready(service: Service) -> tuple[str, str] | None:
    """Why requests should go elsewhere, as one word and a sentence; None: they should come here."""
    if service.session.phase is Phase.FAILED:
        return "failed", "the engine process is gone; this server is ending"
    if service.draining:
        return "draining", "running requests finish, then this server ends"
    if service.session.phase is Phase.LOADING:
        seconds = time.monotonic() - service.started
        loading = service.session.loading
        read = "" if loading is None else f", {loading.read_bytes / 1e9:.2f} of {loading.total_bytes / 1e9:.2f} GB read"
        return "loading", f"waiting for model {service.config.engine.model} to load ({seconds:.0f} s so far{read})"
    if service.session.phase is Phase.RESTARTING:
        return "restarting", "the engine process was lost and another one is loading the model"
    if service.session.stalled:
        return "stalled", "the engine's step takes longer than any such step should"
    return None


@router.get("/health")
@router.get("/ping")
@router.post("/ping")
async def health(service: ServiceOf) -> Response:
    """503 when the engine process stalls or failed; 200 also while it loads, restarts, or has nothing to do. /ping is
    SageMaker's name."""
    status, word = health_status(service.session.phase, draining=service.draining, stalled=service.session.stalled)
    return JSONResponse(
        {
            "status": word,
            "queue_size": service.registry.load().waiting,
            "running": service.session.stats.num_running,
            "kv_cache_usage": service.session.stats.kv_usage,
        },
        status_code=status,
    )


@router.get("/load")
async def load(service: ServiceOf) -> Response:
    """Requests that are waiting or running; each answer to a call is one. vLLM's."""
    return JSONResponse({"server_load": len(service.registry)})


@router.get("/ready")
async def ready(service: ServiceOf) -> Response:
    """200 when requests should be sent here, 503 with what it waits for. While the model loads, the answer waits."""
    with suppress(TimeoutError):
        async with asyncio.timeout(HELD_SECONDS):
            await service.session.started.wait()
    found = unready(service)
    if found is None:
        return JSONResponse({"status": "ready"})
    word, reason = found
    return JSONResponse({"status": word, "reason": reason}, status_code=503)


@metrics_router.get("/metrics")
async def metrics(service: ServiceOf, names: MetricNames = None) -> Response:
    """Prometheus text format; with `?name[]=` only those families or samples."""
    return Response(service.metrics.text(names), media_type=CONTENT_TYPE_PLAIN_0_0_4)

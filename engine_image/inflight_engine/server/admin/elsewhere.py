"""Responses of the serving port for paths on the admin port."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from inflight_engine.server.errors import ApiError

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def router(admin_port: int, *, metrics: bool) -> APIRouter:
    """Answers 404 with the port. `metrics`: /metrics is there too."""
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

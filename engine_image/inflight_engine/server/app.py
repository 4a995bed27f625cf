"""The FastAPI application: endpoints, and every error in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException

from inflight_engine.server import admin, generate, health, openai
from inflight_engine.server.errors import ApiError
from inflight_engine.server.invalid import describe_invalid
from inflight_engine.server.middleware import EdgeMiddleware, OpenResponses, too_large
from inflight_engine.server.service import Service


def create_app(service: Service, responses: OpenResponses, drain: Callable[[], None]) -> FastAPI:
    """The whole HTTP surface.

    Args:
        responses: counts generation responses that are not complete.
        drain: begins the drain; harmless when called again.
    """
    app = FastAPI(title="Inflight engine", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service = service
    app.state.drain = drain
    app.state.registry = CollectorRegistry()
    app.state.registry.register(service.metrics)
    for router in (openai.router, generate.router, admin.router, admin.admin_router, health.router):
        app.include_router(router)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    app.add_middleware(EdgeMiddleware, service=service, responses=responses)
    return app


def _respond(error: ApiError) -> Response:
    return Response(error.body(), error.status, error.all_headers())


async def _api_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, ApiError)
    return _respond(exc)


async def _invalid(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    return _respond(describe_invalid(exc))


async def _http_error(request: Request, exc: Exception) -> Response:
    """What the framework itself refuses: unknown paths and methods, bodies that are too large."""
    assert isinstance(exc, HTTPException)
    path = request.url.path
    headers = dict(exc.headers or {})
    match exc.status_code:
        case 404:
            return _respond(ApiError(404, f"there is no {path} here", code="unknown_url", headers=headers))
        case 405:
            message = f"{request.method} is not allowed on {path}"
            return _respond(ApiError(405, message, code="method_not_allowed", headers=headers))
        case 413:
            return _respond(too_large())
    detail = exc.detail or HTTPStatus(exc.status_code).phrase
    return _respond(ApiError(exc.status_code, detail, headers=headers))


async def _unexpected(request: Request, exc: Exception) -> Response:
    return _respond(ApiError(500, "this server failed on the request; its log says why", code="internal_error"))

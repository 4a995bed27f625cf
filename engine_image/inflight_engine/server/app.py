"""The FastAPI application: endpoints, and errors in OpenAI's format."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from importlib.metadata import version

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.telemetry import TelemetryConfig
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from inflight_contract.errors import ApiError
from inflight_engine.server.admin import kv_blocks, model_blocks
from inflight_engine.server.admin import routes as admin
from inflight_engine.server.errors import ERRORS, describe_invalid, error_response
from inflight_engine.server.http import channel, generate, health, openai, pooling, tokenize
from inflight_engine.server.http.api_keys import ApiKeyMiddleware
from inflight_engine.server.http.messages import router as messages_router
from inflight_engine.server.http.middleware import (
    REQUEST_ID_HEADER,
    EdgeMiddleware,
    OpenResponses,
    request_id,
    too_large,
)
from inflight_engine.server.http.responses import router as responses_router
from inflight_engine.server.service import Service

_NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""FastAPI's own, which variables of the environment turn on: spans are made in `spans`, and never twice."""


def create_app(
    service: Service, responses: OpenResponses, drain: Callable[[], None], admin_port: int | None = None
) -> FastAPI:
    """The application of the serving port.

    Args:
        responses: counts unfinished generation responses.
        drain: starts the drain; idempotent.
        admin_port: port of admin calls; None: this one.
    """
    app = _app(service, responses, drain)
    generating = (openai.router, responses_router, messages_router, generate.router, pooling.router)
    routers = (*generating, channel.router, tokenize.router, admin.router, health.router)
    for router in routers:
        app.include_router(router)
    if service.config.enable_tokenizer_info_endpoint:
        app.include_router(tokenize.info_router)
    metrics_elsewhere = admin_port is not None and not service.config.serving_metrics
    if not metrics_elsewhere:
        app.include_router(health.metrics_router)
    if admin_port is None:
        app.include_router(admin.admin_router)
        app.include_router(model_blocks.router)
        app.include_router(kv_blocks.router)
    else:
        app.include_router(admin.elsewhere(admin_port, metrics=metrics_elsewhere))
    return app


def create_admin_app(service: Service, responses: OpenResponses, drain: Callable[[], None]) -> FastAPI:
    """The application of the admin port; arguments as in `create_app`."""
    app = _app(service, responses, drain)
    blocks = (model_blocks.router, kv_blocks.router)
    for router in (admin.router, admin.admin_router, *blocks, health.router, health.metrics_router):
        app.include_router(router)
    return app


def _app(service: Service, responses: OpenResponses, drain: Callable[[], None]) -> FastAPI:
    app = FastAPI(
        title="Inflight engine",
        version=version("inflight"),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=_NO_TELEMETRY,
        responses=ERRORS,
    )
    app.state.service = service
    app.state.drain = drain
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    config = service.config
    if config.api_key:
        app.add_middleware(ApiKeyMiddleware, keys=config.api_key)
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=config.allowed_methods,
            allow_headers=config.allowed_headers,
            allow_credentials=config.allow_credentials,
            expose_headers=[REQUEST_ID_HEADER],
        )
    app.add_middleware(EdgeMiddleware, service=service, responses=responses)
    return app


async def _api_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, ApiError)
    return error_response(exc, request.url.path)


async def _invalid(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    return error_response(describe_invalid(exc), request.url.path)


async def _http_error(request: Request, exc: Exception) -> Response:
    """Errors of the framework itself: unknown paths and methods, bodies that are too large."""
    assert isinstance(exc, HTTPException)
    path = request.url.path
    headers = dict(exc.headers or {})
    match exc.status_code:
        case 404:
            error = ApiError(404, f"there is no {path} here", code="unknown_url", headers=headers)
        case 405:
            message = f"{request.method} is not allowed on {path}"
            error = ApiError(405, message, code="method_not_allowed", headers=headers)
        case 413:
            error = too_large()
        case _:
            detail = exc.detail or HTTPStatus(exc.status_code).phrase
            error = ApiError(exc.status_code, detail, headers=headers)
    return error_response(error, path)


async def _unexpected(request: Request, exc: Exception) -> Response:
    message = "this server failed on the request; its log says why"
    # Its response bypasses the middleware that sets the request id.
    headers = {REQUEST_ID_HEADER: request_id(request.scope)}
    error = ApiError(500, message, code="internal_error", headers=headers)
    return error_response(error, request.url.path)

"""Runs the HTTP server, and that of gRPC, around a started engine process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from fastapi import FastAPI

from inflight_engine.server.app import create_admin_app, create_app
from inflight_engine.server.engine.process import EngineProcess
from inflight_engine.server.http.middleware import OpenResponses
from inflight_engine.server.lifecycle import Lifecycle
from inflight_engine.server.service import Service
from inflight_engine.server.settings.config import ServerConfig

if TYPE_CHECKING:
    from inflight_engine.server.kv_events.publisher import KVEventPublisher
    from inflight_engine.server.settings.kv_events import KVEventsConfig
    from inflight_engine.server.settings.tracing import TracingConfig
    from inflight_engine.server.telemetry.trace_export import TraceExport

KEEP_ALIVE_SECONDS = 120
"""Longer than clients and proxies keep idle connections (Go: 90 s), so that the client closes first: a server that
closes first occasionally aborts a request in transit."""

LINGER_SECONDS = 5
"""For clients that read their complete response slowly, after the drain."""


FLUSH_SECONDS = 3.0
"""For the last spans to reach the trace collector."""


log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: they would stop accepting at once, while draining still accepts requests."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(
    config: ServerConfig, process: EngineProcess, listener: socket.socket, admin_listener: socket.socket | None = None
) -> str | None:
    """Serve until drained (None) or failed (a sentence). `admin_listener`: for admin calls; None: `listener`."""
    try:
        traces = None if config.tracing is None else _trace_export(config.tracing)
    except ValueError as error:
        return f"traces cannot be sent: {error}"
    try:
        kv_events = None if config.kv_events is None else _kv_events(config.kv_events)
    except ValueError as error:
        return str(error)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(config, process, listener, admin_listener, traces, kv_events))
    finally:
        if kv_events is not None:
            kv_events.close()
        if traces is not None:
            traces.close(FLUSH_SECONDS)


async def _serve(
    config: ServerConfig,
    process: EngineProcess,
    listener: socket.socket,
    admin_listener: socket.socket | None,
    traces: TraceExport | None,
    kv_events: KVEventPublisher | None,
) -> str | None:
    service, responses = Service(config), OpenResponses()
    service.session.kv_events = kv_events
    if kv_events is not None:
        service.metrics.dropped_events = lambda: kv_events.num_dropped
    if traces is not None:
        service.spans = traces.spans(config.served_model_name)
        service.metrics.spans = traces.counts
    lifecycle = Lifecycle(service, process, responses)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lifecycle.signal)
    admin_port = None if admin_listener is None else admin_listener.getsockname()[1]
    service.handover.port = listener.getsockname()[1] if admin_port is None else admin_port
    servers = [_start(create_app(service, responses, lifecycle.drain, admin_port), listener)]
    if admin_listener is not None:
        servers.append(_start(create_admin_app(service, responses, lifecycle.drain), admin_listener))
    try:
        stop_grpc = None if config.grpc_port is None else await _serve_grpc(service, responses)
    except OSError as error:
        process.kill()
        return str(error)
    await service.session.link.connect(process.socket)
    failure = await lifecycle.run()
    service.channels.close()
    await asyncio.gather(close(servers), *([] if stop_grpc is None else [stop_grpc(LINGER_SECONDS)]))
    return failure


async def _serve_grpc(service: Service, responses: OpenResponses) -> Callable[[float], Awaitable[None]]:
    """Start the gRPC server. Returns what stops it within so many seconds."""
    from inflight_engine.server.grpc.server import serve_grpc  # imports gRPC

    server, port = await serve_grpc(service, responses)
    log.info("gRPC on %s port %d", service.config.host, port)
    stop: Callable[[float], Awaitable[None]] = server.stop
    return stop


def _trace_export(config: TracingConfig) -> TraceExport:
    from inflight_engine.server.telemetry.trace_export import TraceExport  # imports OpenTelemetry's SDK

    return TraceExport(config)


def _kv_events(config: KVEventsConfig) -> KVEventPublisher:
    from inflight_engine.server.kv_events.publisher import KVEventPublisher  # imports ZeroMQ

    return KVEventPublisher(config)


async def close(servers: Sequence[tuple[uvicorn.Server, asyncio.Task[None]]]) -> None:
    """End them all at the same time, so that all together linger no longer than one."""
    for server, _ in servers:
        server.should_exit = True
    await asyncio.gather(*(serving for _, serving in servers))


def _start(app: FastAPI, listener: socket.socket) -> tuple[_Server, asyncio.Task[None]]:
    server = _Server(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=LINGER_SECONDS,
        )
    )
    return server, asyncio.create_task(server.serve(sockets=[listener]))

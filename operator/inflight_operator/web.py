"""GET /metrics and GET /healthz, served from a thread of their own: they answer while the event loop is busy, and tell
when it no longer turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from threading import Thread
from time import monotonic
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app

STUCK_AFTER_SECONDS = 30.0


class Heartbeat:
    """Beaten from the event loop; read from the server's thread."""

    def __init__(self) -> None:
        self._last = monotonic()

    def beat(self) -> None:
        self._last = monotonic()

    @property
    def age(self) -> float:
        """Seconds since the last beat."""
        return monotonic() - self._last


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Probes and scrapes are not worth a line each."""


class WebServer:
    """Serves until closed.

    Args:
        port: to listen on, all addresses; 0 takes a free one.

    Raises:
        OSError: the port is taken; the message names it.
    """

    def __init__(self, port: int, registry: CollectorRegistry, heartbeat: Heartbeat) -> None:
        self._metrics = make_wsgi_app(registry)
        self._heartbeat = heartbeat
        try:
            self._server = _Server(("", port), _QuietHandler)
        except OSError as error:
            raise OSError(f"cannot listen on --metrics-port {port}: {error.strerror or error}") from error
        self._server.set_app(self._answer)
        Thread(target=self._server.serve_forever, name="metrics and health", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            answer: Iterable[bytes] = self._metrics(environ, start_response)
            return answer
        if path != "/healthz":
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"there is /metrics and /healthz\n"]
        age = self._heartbeat.age
        healthy = age < STUCK_AFTER_SECONDS
        start_response("200 OK" if healthy else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ok\n" if healthy else f"the event loop has not turned for {age:.0f} s\n".encode()]

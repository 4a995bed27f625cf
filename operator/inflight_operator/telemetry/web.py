"""GET /metrics and GET /healthz, served from a thread of their own: they answer while the event loop is busy, and
report when it hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from threading import Thread
from time import monotonic
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app

from inflight_operator.telemetry.access import Access, Verdict

STUCK_AFTER_SECONDS = 30.0
ROUNDS_MISSING_AFTER_SECONDS = 120.0
"""Seconds without a round after which the process is unhealthy; well above the longest pause between two rounds of a
service whose rounds fail."""


class Heartbeat:
    """Signs of life of the event loop, read from the server's thread."""

    def __init__(self) -> None:
        self._last = self._round = monotonic()

    def beat(self, *, rounds_due: bool) -> None:
        """Notes that the event loop runs. `rounds_due`: this process leads and has services, so rounds must
        complete."""
        self._last = monotonic()
        if not rounds_due:
            self._round = self._last

    def round_done(self) -> None:
        """Notes that a round of a service has ended, successfully or not."""
        self._round = monotonic()

    @property
    def problem(self) -> str:
        """Returns the reason why this process is unhealthy; empty if healthy."""
        now = monotonic()
        if now - self._last >= STUCK_AFTER_SECONDS:
            return f"the event loop has not turned for {now - self._last:.0f} s"
        if now - self._round >= ROUNDS_MISSING_AFTER_SECONDS:
            return f"no round has ended for {now - self._round:.0f} s"
        return ""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    timeout = 10.0
    """Seconds of silence after which a connection is closed: each has a thread."""

    def handle(self) -> None:
        with suppress(TimeoutError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: probes and scrapes are frequent."""


class WebServer:
    """Serves until closed.

    Args:
        port: port to listen on, on all addresses; 0 picks a free one.
        access: decides about clients of /metrics; None lets all of them read it.

    Raises:
        OSError: the port is taken; the message names it.
    """

    def __init__(
        self, port: int, registry: CollectorRegistry, heartbeat: Heartbeat, access: Access | None = None
    ) -> None:
        self._access = access
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
            if self._access is not None:
                verdict = self._access.verdict(environ.get("HTTP_AUTHORIZATION", ""))
                if verdict is not Verdict.ALLOWED:
                    challenge = [("WWW-Authenticate", "Bearer")] if verdict is Verdict.UNKNOWN else []
                    start_response(verdict.value, [("Content-Type", "text/plain"), *challenge])
                    return [b"a token of an account that may get /metrics is needed\n"]
            answer: Iterable[bytes] = self._metrics(environ, start_response)
            return answer
        if path != "/healthz":
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"there is /metrics and /healthz\n"]
        problem = self._heartbeat.problem
        start_response("503 Service Unavailable" if problem else "200 OK", [("Content-Type", "text/plain")])
        return [f"{problem or 'ok'}\n".encode()]

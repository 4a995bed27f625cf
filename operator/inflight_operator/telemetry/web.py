"""GET /metrics and GET /healthz, served from a thread of their own: they answer while the event loop is busy, and
report when it hangs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from socket import SHUT_RDWR, socket
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Lock, Thread
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

MOST_CONNECTIONS = 64
"""Most connections, each of which has a thread. A Prometheus and the kubelet have one each for a moment."""

PAGES_AT_ONCE = 4
"""Most pages of metrics that are made at once, each in the time of the event loop: the interpreter runs one thread."""


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
    """Serves each connection in a thread, which ends with it. When there are `MOST_CONNECTIONS` and another comes, the
    address with most of them loses its oldest: slow clients keep neither threads nor others from being served."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int) -> None:
        super().__init__(("", port), _QuietHandler)
        self._lock = Lock()
        self._open: dict[socket, str] = {}
        """Connections by age, and the addresses of their clients."""

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= MOST_CONNECTIONS:
                [(most, _)] = Counter(self._open.values()).most_common(1)
                oldest = next(one for one, address in self._open.items() if address == most)
                del self._open[oldest]
                with suppress(OSError):  # it is gone already
                    oldest.shutdown(SHUT_RDWR)
            self._open[request] = client_address[0]
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)


class _QuietHandler(WSGIRequestHandler):
    timeout = 10.0
    """Seconds of silence after which a connection is closed: each has a thread."""

    def handle(self) -> None:
        with suppress(TimeoutError, ConnectionError):
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
        self._pages = BoundedSemaphore(PAGES_AT_ONCE)
        self._heartbeat = heartbeat
        try:
            self._server = _Server(port)
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
                verdict = self._access.verdict(environ.get("HTTP_AUTHORIZATION", ""), environ["REMOTE_ADDR"])
                if verdict is not Verdict.ALLOWED:
                    challenge = [("WWW-Authenticate", "Bearer")] if verdict is Verdict.UNKNOWN else []
                    start_response(verdict.value, [("Content-Type", "text/plain"), *challenge])
                    return [b"a token of an account that may get /metrics is needed\n"]
            if not self._pages.acquire(blocking=False):
                start_response("503 Service Unavailable", [("Content-Type", "text/plain"), ("Retry-After", "1")])
                return [f"{PAGES_AT_ONCE} others are given /metrics now\n".encode()]
            try:
                answer: Iterable[bytes] = self._metrics(environ, start_response)
            finally:
                self._pages.release()
            return answer
        if path != "/healthz":
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"there is /metrics and /healthz\n"]
        problem = self._heartbeat.problem
        start_response("503 Service Unavailable" if problem else "200 OK", [("Content-Type", "text/plain")])
        return [f"{problem or 'ok'}\n".encode()]

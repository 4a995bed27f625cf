"""The picker's HTTP ports.

On the pod network: metrics and health for all, and the load for the operator, which signs with the gateway key. On
loopback, where `kubectl port-forward` leads: load and last picks without a signature, since
who may forward ports into the gateway's namespace may see both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from contextlib import aclosing
from time import monotonic

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from inflight_base.manifest.keys import ServiceKey
from inflight_base.signing import PEER_SIGNATURE, get_message
from inflight_gateway.state.picks import PER_SERVICE, PicksLog
from inflight_gateway.state.stream import LoadStream, TooSlowError
from inflight_gateway.tenants.gateway_key import GatewayKey

MAX_WATCHERS = 64
"""Most signed watchers of GET /v1/state, and most of those on loopback."""

WRITE_SECONDS = 10.0
"""Maximum time that a watcher's connection may accept no bytes."""

DEFAULT_PICKS = 20

LOOPBACK = "127.0.0.1"

HEAD_SECONDS = 5.0
"""Maximum time from the start of a connection to its first request."""

GRACE_SECONDS = 0.1
"""Then so much longer: what came while this process did not run is read first."""

KEEP_ALIVE_SECONDS = 20.0
"""Maximum time that a connection stays open between two requests."""

PAGE_SHARE = 0.05
"""Maximum share of the picker's time for pages of metrics, which anyone in the cluster may ask for."""

MAX_PAGES = 16
"""Most pages of metrics that are sent at once; the connection of the oldest one ends for another."""

MAX_CONNECTIONS = 512
"""Most connections to a port; the oldest one that is no watcher's ends for another."""

_CHUNK = 2**16

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class StatePort:
    """Serves until closed.

    Args:
        metrics: the page in Prometheus text format.
        unready: reasons why this pod must not get requests; empty if ready.
        key: verifies the signatures of watchers; without a key none is valid.
        owner: returns the gateway pod that owns a service: it makes all of the service's picks.
    """

    def __init__(
        self,
        stream: LoadStream,
        picks: PicksLog,
        metrics: Callable[[], bytes],
        unready: Callable[[], Sequence[str]],
        key: GatewayKey,
        owner: Callable[[ServiceKey], str],
    ) -> None:
        self._stream = stream
        self._picks = picks
        self._metrics_page = metrics
        self._unready = unready
        self._key = key
        self._owner = owner
        self._page, self._page_until = b"", 0.0
        self._watchers = {"signed": 0, "local": 0}
        self._watching: set[web.RequestHandler] = set()
        self._readers: dict[web.RequestHandler, None] = {}
        health = [
            web.get("/metrics", self._metrics),
            web.get("/healthz", self._healthz),
            web.get("/readyz", self._readyz),
        ]
        local = [web.get("/v1/state", self._local_state), web.get("/v1/picks", self._last_picks)]
        self._public = _Listener([*health, web.get("/v1/state", self._signed_state)], self._watching)
        self._local = _Listener([*health, *local], self._watching)
        self._sending: asyncio.Task[None] | None = None

    async def start(self, port: int, local_port: int, host: str | None = None) -> tuple[int, int]:
        """Listens, and returns both ports: free ones for 0.

        Args:
            port: on the pod network. local_port: on loopback.
            host: address to listen on in place of the pod network's; None: all.

        Raises:
            OSError: a port is in use; the message names its flag.
        """
        numbers = (
            await self._public.start(host, port, "--http-port"),
            await self._local.start(LOOPBACK, local_port, "--local-port"),
        )
        self._sending = asyncio.create_task(self._stream.run(), name="load stream")
        return numbers

    async def close(self) -> None:
        """Ends all responses, including those to watchers."""
        if self._sending is not None:
            self._sending.cancel()
        await asyncio.gather(self._public.close(), self._local.close())

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        began = monotonic()
        if began >= self._page_until:
            self._page = self._metrics_page()
            self._page_until = began + (monotonic() - began) / PAGE_SHARE
        if len(self._readers) >= MAX_PAGES:
            _abort(next(iter(self._readers)))
        self._readers[request.protocol] = None
        try:
            return await self._send(request, memoryview(self._page))
        finally:
            del self._readers[request.protocol]

    async def _send(self, request: web.Request, page: memoryview) -> web.StreamResponse:
        """Sends a page in parts: a client that does not read keeps one of them in memory, for `WRITE_SECONDS`."""
        answer = web.StreamResponse(headers={"Content-Type": METRICS_TYPE})
        answer.content_length = len(page)
        await answer.prepare(request)
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                for begin in range(0, len(page), _CHUNK):
                    await answer.write(bytes(page[begin : begin + _CHUNK]))
        except (TimeoutError, ConnectionError):
            _abort(request.protocol)
        return answer

    async def _healthz(self, _: web.Request) -> web.Response:
        """Responds: any response means that the event loop runs."""
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        reasons = self._unready()
        return web.Response(status=503 if reasons else 200, text="".join(f"{one}\n" for one in reasons or ("ok",)))

    async def _signed_state(self, request: web.Request) -> web.StreamResponse:
        if not self._key.signed(get_message(request.path_qs), request.headers.get(PEER_SIGNATURE, "")):
            said = "sign the request with the gateway key, or read this at the pod's loopback port\n"
            refused = web.Response(status=401, text=said)
            refused.force_close()
            return refused
        return await self._state(request, "signed")

    async def _local_state(self, request: web.Request) -> web.StreamResponse:
        return await self._state(request, "local")

    async def _state(self, request: web.Request, kind: str) -> web.StreamResponse:
        if request.query.get("watch", "0") not in ("1", "true"):
            return web.Response(body=self._stream.full_line(), content_type="application/json")
        if self._watchers[kind] >= MAX_WATCHERS:
            return web.Response(status=503, text=f"{MAX_WATCHERS} watchers already\n", headers={"Retry-After": "5"})
        self._watchers[kind] += 1
        self._watching.add(request.protocol)
        try:
            answer = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
            await answer.prepare(request)
            await self._write(request, answer, self._stream.watch())
        finally:
            self._watchers[kind] -= 1
            self._watching.discard(request.protocol)
        return answer

    async def _write(
        self, request: web.Request, answer: web.StreamResponse, watched: AsyncGenerator[bytes, None]
    ) -> None:
        async with aclosing(watched) as lines:
            try:
                async for line in lines:
                    async with asyncio.timeout(WRITE_SECONDS):
                        await answer.write(line)
            except (TooSlowError, TimeoutError, ConnectionError):
                _abort(request.protocol)

    async def _last_picks(self, request: web.Request) -> web.Response:
        namespace, name = request.query.get("namespace"), request.query.get("service")
        if not namespace or not name:
            return web.Response(status=400, text="give ?namespace=NAMESPACE&service=NAME\n")
        last = request.query.get("last", str(DEFAULT_PICKS))
        if not (last.isascii() and last.isdigit() and 1 <= int(last) <= PER_SERVICE):
            return web.Response(status=400, text=f"last must be a number from 1 to {PER_SERVICE}\n")
        key = ServiceKey(namespace, name)
        said = {"namespace": namespace, "service": name, "owner": self._owner(key)}
        return web.Response(
            body=msgspec.json.encode({**said, "picks": self._picks.last(key, int(last))}),
            content_type="application/json",
        )


def _abort(connection: web.RequestHandler) -> None:
    if isinstance(connection.transport, asyncio.Transport):
        connection.transport.abort()


class _Listener:
    """A port. Connections without a request end after `HEAD_SECONDS`, and the oldest ones beyond `MAX_CONNECTIONS`:
    anyone in the cluster may open them. Args: watching: connections that stay."""

    def __init__(self, routes: Sequence[web.RouteDef], watching: Set[web.RequestHandler]) -> None:
        self._watching = watching
        app = web.Application(middlewares=[self._heard])
        app.add_routes(routes)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=1.0,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
        )
        self._server: asyncio.Server | None = None
        self._silent: set[web.RequestHandler] = set()

    async def start(self, host: str | None, port: int, flag: str) -> int:
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._connected, host, port, reuse_address=True)
        except OSError as error:
            await self._runner.cleanup()
            raise OSError(f"cannot listen on {flag} {port}: {error.strerror or error}") from error
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    def _connected(self) -> web.RequestHandler:
        assert self._runner.server is not None
        others = [one for one in self._runner.server.connections if one not in self._watching]
        for one in others[: max(0, len(others) - MAX_CONNECTIONS + 1)]:
            _abort(one)
        connection = self._runner.server()
        self._silent.add(connection)
        loop = asyncio.get_running_loop()
        loop.call_later(HEAD_SECONDS, loop.call_later, GRACE_SECONDS, self._end_silent, connection)
        return connection

    def _end_silent(self, connection: web.RequestHandler) -> None:
        if connection in self._silent:
            self._silent.discard(connection)
            connection.force_close()

    @web.middleware
    async def _heard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._silent.discard(request.protocol)
        return await handler(request)

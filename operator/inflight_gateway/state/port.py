"""The picker's HTTP port, on the pod network: metrics, health, load and picks. Read-only, without secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from aiohttp import web

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.state.picks import PER_SERVICE, PicksLog
from inflight_gateway.state.stream import LoadStream, TooSlowError

MAX_WATCHERS = 64
"""Most watchers of GET /v1/state: the operator, the other gateway pods, and a few people."""

WRITE_SECONDS = 10.0
"""Maximum time that a watcher's connection may accept no bytes."""

DEFAULT_PICKS = 20

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class StatePort:
    """Serves until closed.

    Args:
        metrics: the page in Prometheus text format.
        unready: reasons why this pod must not get requests; empty if ready.
        more: routes of other parts.
    """

    def __init__(
        self,
        stream: LoadStream,
        picks: PicksLog,
        metrics: Callable[[], bytes],
        unready: Callable[[], Sequence[str]],
        more: Sequence[web.RouteDef] = (),
    ) -> None:
        self._stream = stream
        self._picks = picks
        self._metrics_page = metrics
        self._unready = unready
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/v1/state", self._state),
                web.get("/v1/picks", self._last_picks),
                *more,
            ]
        )
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, handler_cancellation=True, shutdown_timeout=1.0
        )
        self._sending: asyncio.Task[None] | None = None

    async def start(self, port: int, host: str | None = None) -> int:
        """Listens, and returns the port: a free one if `port` is 0.

        Args:
            host: address to listen on; None: all.

        Raises:
            OSError: the port is in use; the message names it.
        """
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise OSError(f"cannot listen on --http-port {port}: {error.strerror or error}") from error
        self._sending = asyncio.create_task(self._stream.run(), name="load stream")
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Ends all responses, including those to watchers."""
        if self._sending is not None:
            self._sending.cancel()
        await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics_page(), headers={"Content-Type": METRICS_TYPE})

    async def _healthz(self, _: web.Request) -> web.Response:
        """Responds: any response means that the event loop runs."""
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        reasons = self._unready()
        return web.Response(status=503 if reasons else 200, text="".join(f"{one}\n" for one in reasons or ("ok",)))

    async def _state(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch", "0") not in ("1", "true"):
            return web.Response(body=self._stream.full_line(), content_type="application/json")
        if self._stream.watchers >= MAX_WATCHERS:
            return web.Response(status=503, text=f"{MAX_WATCHERS} watchers already\n", headers={"Retry-After": "5"})
        answer = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
        await answer.prepare(request)
        lines = self._stream.watch()
        try:
            async for line in lines:
                async with asyncio.timeout(WRITE_SECONDS):
                    await answer.write(line)
        except (TooSlowError, TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            await lines.aclose()
        return answer

    async def _last_picks(self, request: web.Request) -> web.Response:
        namespace, name = request.query.get("namespace"), request.query.get("service")
        if not namespace or not name:
            return web.Response(status=400, text="give ?namespace=NAMESPACE&service=NAME\n")
        last = request.query.get("last", str(DEFAULT_PICKS))
        if not (last.isascii() and last.isdigit() and 1 <= int(last) <= PER_SERVICE):
            return web.Response(status=400, text=f"last must be a number from 1 to {PER_SERVICE}\n")
        picks = self._picks.last(ServiceKey(namespace, name), int(last))
        return web.Response(
            body=msgspec.json.encode({"namespace": namespace, "service": name, "picks": picks}),
            content_type="application/json",
        )

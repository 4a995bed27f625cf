"""Receiver of relays' reports on finished and retried requests: HTTP on a UNIX socket that only the pod's containers
can reach."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web

from inflight_gateway.request.paths import FINISHED, RETRIED
from inflight_gateway.types import Finished, Retried

MAX_BYTES = 8 * 2**20
"""Most bytes of a batch of reports."""

_finished_decoder = msgspec.json.Decoder(list[Finished])
_retried_decoder = msgspec.json.Decoder(list[Retried])

T = TypeVar("T")


async def serve(
    socket: Path, finished: Callable[[Finished], None], retried: Callable[[Retried], None]
) -> web.AppRunner:
    """Calls `finished` and `retried` for each report, until the runner is cleaned up. `socket` must not exist."""

    app = web.Application(client_max_size=MAX_BYTES)
    app.add_routes(
        [
            web.post(FINISHED, _handler(_finished_decoder, finished)),
            web.post(RETRIED, _handler(_retried_decoder, retried)),
        ]
    )
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    return runner


def _handler(
    decoder: msgspec.json.Decoder[list[T]], take: Callable[[T], None]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        try:
            reports = decoder.decode(await request.read())
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        for report in reports:
            take(report)
        return web.Response(status=204)

    return handle

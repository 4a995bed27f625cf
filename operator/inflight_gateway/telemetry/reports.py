"""Receiver of relays' reports on finished and retried requests: HTTP on a UNIX socket that only the pod's containers
can reach."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.request.paths import FINISHED, RETRIED
from inflight_gateway.types import Finished, Retried

MAX_BYTES = 8 * 2**20
"""Of one batch of reports."""


class _Report(msgspec.Struct):
    """`Finished` as JSON: its service is `NAMESPACE/NAME`, or empty if unknown to the relay."""

    request_id: str
    service: str
    status: int
    stream: bool
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    ttft_s: float | None = None
    e2e_s: float = 0.0
    longest_gap_s: float = 0.0
    endpoints: tuple[str, ...] = ()
    continuations: int = 0
    error: str = ""
    external_id: str = ""


_decoder = msgspec.json.Decoder(list[_Report])
_retried_decoder = msgspec.json.Decoder(list[Retried])


def read(content: bytes) -> list[Finished]:
    """
    Raises:
        ValueError: this is no list of reports; the message names the field.
    """
    return [_finished(report) for report in _decoder.decode(content)]


def _finished(report: _Report) -> Finished:
    namespace, _, name = report.service.partition("/")
    return Finished(**{**msgspec.structs.asdict(report), "service": ServiceKey(namespace, name)})


T = TypeVar("T")


async def serve(
    socket: Path, finished: Callable[[Finished], None], retried: Callable[[Retried], None]
) -> web.AppRunner:
    """Calls `finished` and `retried` for each report, until the runner is cleaned up. `socket` must not exist."""

    app = web.Application(client_max_size=MAX_BYTES)
    app.add_routes(
        [web.post(FINISHED, _handler(read, finished)), web.post(RETRIED, _handler(_retried_decoder.decode, retried))]
    )
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    return runner


def _handler(
    decode: Callable[[bytes], list[T]], take: Callable[[T], None]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        try:
            reports = decode(await request.read())
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        for report in reports:
            take(report)
        return web.Response(status=204)

    return handle

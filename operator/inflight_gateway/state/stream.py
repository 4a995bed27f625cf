"""Load stream for watchers: a full line first, then changes at most every 50 ms, and a full line every 5 s."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from inflight_gateway.state.load import GatewayLoads, line

MIN_SECONDS = 0.05
"""Minimum seconds between two lines with changes."""

FULL_SECONDS = 5.0
"""Seconds between two full lines."""

MAX_BEHIND = 128
"""Most lines that wait for a watcher; one that reads nothing for about six seconds of constant change is cut off."""


class TooSlowError(Exception):
    """A watcher does not read fast enough."""


class LoadStream:
    """Turns the picker's load into lines, the same ones for all watchers.

    Args:
        gateway: name of this pod.
    """

    def __init__(self, gateway: str, source: GatewayLoads) -> None:
        self._gateway = gateway
        self._source = source
        self._changed = asyncio.Event()
        self._watchers: set[asyncio.Queue[bytes | None]] = set()

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def changed(self) -> None:
        """Notes that the load has changed: a request arrived, was sent, or ended. Cheap; call it each time."""
        self._changed.set()

    def full_line(self) -> bytes:
        return line(self._gateway, self._source.service_loads(), full=True)

    async def watch(self) -> AsyncGenerator[bytes, None]:
        """Yields lines until `run` ends.

        Raises:
            TooSlowError: the reader is behind by `MAX_BEHIND` lines.
        """
        lines: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_BEHIND + 1)  # and the end
        # All other watchers get the changes up to now, so that the next line with changes has the same base for all.
        self._send(full=False)
        self._watchers.add(lines)
        try:
            yield self.full_line()
            while (each := await lines.get()) is not None:
                yield each
            if lines not in self._watchers:
                raise TooSlowError(f"behind by {MAX_BEHIND} lines")
        finally:
            self._watchers.discard(lines)

    async def run(self) -> None:
        """Sends lines to watchers until cancelled, then ends all streams."""
        try:
            await self._run()
        finally:
            for lines in self._watchers:
                lines.put_nowait(None)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        full_at = loop.time()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(full_at):
                    await self._changed.wait()
            self._changed.clear()
            full = loop.time() >= full_at
            if full:
                full_at = loop.time() + FULL_SECONDS
            if self._watchers:
                self._send(full=full)
            await asyncio.sleep(MIN_SECONDS)

    def _send(self, *, full: bool) -> None:
        changes = self._source.changes()
        if not full and not changes:
            return
        next_line = self.full_line() if full else line(self._gateway, changes, full=False)
        for lines in tuple(self._watchers):
            if lines.qsize() < MAX_BEHIND:
                lines.put_nowait(next_line)
            else:
                self._watchers.discard(lines)
                lines.put_nowait(None)

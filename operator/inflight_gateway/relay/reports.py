"""Reports of finished and of retried requests to the picker: best effort, in batches, without delaying requests."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import aiohttp
import msgspec

from inflight_gateway.request.paths import FINISHED, RETRIED
from inflight_gateway.types import Finished, Retried

_log = logging.getLogger(__name__)

INTERVAL_S = 0.1
MAX_WAITING = 10_000
"""Most reports that wait: those of about 5 s at the highest rate that one process can serve."""
MAX_BATCH = 1000
_TIMEOUT = aiohttp.ClientTimeout(total=2)


class Reports:
    """Queue of reports. Attributes: dropped: reports that did not reach the picker."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._waiting: deque[Finished] = deque()
        self._retried: deque[Retried] = deque(maxlen=MAX_WAITING)
        self.dropped = 0

    def add(self, report: Finished) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
        else:
            self._waiting.append(report)

    def retried(self, report: Retried) -> None:
        self._retried.append(report)

    async def run(self) -> None:
        """Send until cancelled, then flush once."""
        logged = 0
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(self._socket), timeout=_TIMEOUT) as session:
            try:
                while True:
                    await asyncio.sleep(INTERVAL_S)
                    await self._send(session)
                    if self.dropped > logged:
                        _log.warning("%d reports of finished requests were not sent so far", self.dropped)
                        logged = max(self.dropped, 2 * logged)
            finally:
                await self._send(session)

    async def _send(self, session: aiohttp.ClientSession) -> None:
        # Before the reports of their ends.
        if self._retried:
            retried = [*self._retried]
            self._retried.clear()
            await _post(session, RETRIED, msgspec.json.encode(retried))
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
            if not await _post(session, FINISHED, msgspec.json.encode(batch)):
                self.dropped += len(batch)
                return


async def _post(session: aiohttp.ClientSession, path: str, content: bytes) -> bool:
    """Sends reports; returns whether the picker accepted them."""
    try:
        async with session.post(
            f"http://picker{path}", data=content, headers={"content-type": "application/json"}
        ) as response:
            response.raise_for_status()
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False
    return True

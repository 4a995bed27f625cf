"""Graceful shutdown: new requests are refused after a delay, running ones finish, then vLLM is told to exit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from inflight_contract.errors import ApiError

log = logging.getLogger("vllm.inflight")

_RETRY_AFTER_S = 1.0


class Drain:
    """State of the server's shutdown. One event loop uses it.

    Args:
        delay: seconds in which new requests are still taken, since routers may still send them.
        timeout: seconds for running requests after that.
        leave: makes vLLM exit; requests that still run end with an error.
    """

    def __init__(self, delay: float, timeout: float, leave: Callable[[], None]) -> None:
        self.draining = False
        self.running = 0
        """Requests without a complete response."""
        self.refused = 0
        self._delay = delay
        self._timeout = timeout
        self._leave = leave
        self._admitting = True
        self._none_running = asyncio.Event()
        self._none_running.set()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start to drain; a second call changes nothing."""
        if not self.draining:
            self.draining = True
            self._task = asyncio.get_running_loop().create_task(self._run())

    def signal(self) -> None:
        """SIGTERM: drain; a second one ends at once."""
        if self.draining:
            self._leave()
        self.begin()

    def enter(self) -> None:
        """Take a request.

        Raises:
            ApiError: 503, no more requests are taken.
        """
        if not self._admitting:
            self.refused += 1
            raise ApiError(
                503,
                "this replica is draining: running requests finish, then it ends; send the request to another one",
                code="draining",
                retry_after=_RETRY_AFTER_S,
            )
        self.running += 1
        self._none_running.clear()

    def exit(self) -> None:
        """End a request that was taken."""
        self.running -= 1
        if not self.running:
            self._none_running.set()

    async def _run(self) -> None:
        log.info("inflight: draining: requests are taken for another %g s", self._delay)
        await asyncio.sleep(self._delay)
        self._admitting = False
        log.info("inflight: draining: %d running requests have %g s to finish", self.running, self._timeout)
        try:
            await asyncio.wait_for(self._none_running.wait(), self._timeout)
        except TimeoutError:
            log.warning("inflight: drain timeout: %d requests end before they are complete", self.running)
        else:
            log.info("inflight: drained")
        self._leave()

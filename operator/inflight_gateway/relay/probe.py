"""A small request to an engine within a generation request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from inflight_base.http.heads import Headers
from inflight_gateway.relay.answers.frames import Frame
from inflight_gateway.relay.attempt import Attempt
from inflight_gateway.relay.decide import Failure

_MAX_BYTES = 64 * 2**10
"""Most bytes of an answer."""

_ANSWER_S = 10.0
"""Seconds from the head of an answer to its end."""


class Probe:
    """Owner of an attempt whose whole answer is read, up to a bound.

    Args:
        answered: called with the status and the body. failed: called if there is none.

    Attributes: attempt: set by the caller.
    """

    def __init__(self, answered: Callable[[int, bytes], None], failed: Callable[[Failure], None]) -> None:
        self.attempt: Attempt
        self._answered = answered
        self._failed = failed
        self._status = 0
        self._body = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def kept_bytes(self) -> int:
        return len(self._body)

    @property
    def most_frame_bytes(self) -> int:
        return _MAX_BYTES

    def plain(self, status: int, headers: Headers) -> None:
        self._status = status
        self._timer = asyncio.get_running_loop().call_later(_ANSWER_S, self._fail, Failure.SILENT)

    def plain_data(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > _MAX_BYTES:
            self._fail(Failure.EXCESS)

    def plain_ended(self) -> None:
        self.stop()
        self._answered(self._status, bytes(self._body))

    def accepted(self, headers: Headers, *, framed: bool) -> None:
        self._fail(Failure.GARBLED)

    def token(self, data: bytes, now: float) -> bool:
        return False

    def long(self, begun: Frame) -> bool:
        return False

    def frames(self, frames: Sequence[Frame], now: float) -> None:
        """Ignores them: the attempt ended with its head."""

    def failed(self, failure: Failure) -> None:
        self.stop()
        self._failed(failure)

    def stop(self) -> None:
        """Ends the watch for the answer; called in any case."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, failure: Failure) -> None:
        self.attempt.cancel()
        self.failed(failure)

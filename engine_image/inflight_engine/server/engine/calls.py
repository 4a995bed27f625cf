"""Calls to the engine with a response."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import TypeAlias

from inflight_contract.errors import ApiError
from inflight_engine.messages import (
    BlocksRead,
    Configure,
    Configured,
    FlushRecord,
    ReadBlocks,
    RecordFlushed,
    Sleep,
    Slept,
)

ANSWER_SECONDS = 60.0
"""Time limit of a call. The engine answers between two steps: if a step takes longer, the caller gets 504, and the call
is in force once the step is done."""

Question: TypeAlias = Configure | FlushRecord | Sleep | ReadBlocks
Answer: TypeAlias = Configured | RecordFlushed | Slept | BlocksRead


class EngineCalls:
    """Matches responses to calls by `call_id`. `send` writes a message to the engine."""

    def __init__(self, send: Callable[[Question], None]) -> None:
        self._send = send
        self._call_ids = itertools.count()
        self._open: dict[int, asyncio.Future[Answer]] = {}
        self._failure: ApiError | None = None

    async def ask(self, question: Callable[[int], Question]) -> Answer:
        """Wait for the engine's response; the configuration in it is in force by then.

        Raises:
            ApiError: 504 without a response, or the error given to `fail`.
        """
        if self._failure is not None:
            raise self._failure
        call_id = next(self._call_ids)
        self._send(question(call_id))
        answered = self._open[call_id] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(answered, ANSWER_SECONDS)
        except TimeoutError:
            raise ApiError(504, f"the engine did not answer within {ANSWER_SECONDS:g} s") from None
        finally:
            del self._open[call_id]

    def tell(self, question: Callable[[int], Question]) -> None:
        """Send a call without waiting for the response."""
        self._send(question(next(self._call_ids)))

    @property
    def waiting(self) -> bool:
        """A call is in flight."""
        return bool(self._open)

    def answered(self, answer: Answer) -> None:
        """Complete the call of this response; responses to timed-out calls are ignored."""
        waiting = self._open.get(answer.call_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def fail(self, error: ApiError) -> None:
        """Fail calls in flight, and new ones until `resume`, with `error`."""
        self._failure = error
        for waiting in self._open.values():
            if not waiting.done():
                waiting.set_exception(error)

    def resume(self) -> None:
        """A new engine accepts calls."""
        self._failure = None

"""One request on the API process's side: its tokens become text, and whoever serves the client is woken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inflight_engine.request import FinishReason, SamplingParams
from inflight_engine.server.errors import ApiError
from inflight_engine.server.stop import StopStrings


class Detokenizer(Protocol):
    """Turns the tokens of one request into text; holds back bytes that are not yet a character."""

    def push(self, token_ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asked for, checked and tokenized.

    Attributes:
        stop: stop strings, found here; stop token ids are in `sampling` and found by the engine.
        streaming: tokens are handed over as they come, not at the end.
    """

    prompt_token_ids: list[int]
    sampling: SamplingParams
    stop: tuple[str, ...]
    streaming: bool


@dataclass(slots=True)
class Timings:
    """Seconds on the monotonic clock; None: has not happened."""

    arrived: float
    admitted: float | None = None
    first_token: float | None = None
    finished: float | None = None


class Generation:
    """State of one running request.

    The dispatcher of step reports calls `add_token` and `finish`; one consumer calls `wait`, then `take`. Text is made
    when it is taken, except with stop strings: those must be found in the step in which they appear.
    """

    __slots__ = (
        "_detokenizer",
        "_event",
        "_stop",
        "_stop_token_ids",
        "_text",
        "_undecoded",
        "error",
        "finish_reason",
        "last_token_at",
        "request",
        "request_id",
        "timer",
        "timings",
        "token_ids",
    )

    def __init__(self, request_id: int, request: GenerationRequest, detokenizer: Detokenizer, arrived: float) -> None:
        self.request_id = request_id
        self.request = request
        self.timings = Timings(arrived)
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.error: ApiError | None = None
        self.last_token_at = -1.0
        """When the latest token came."""
        self.timer: asyncio.TimerHandle | None = None
        """The timeout that runs: in the queue, then while it runs."""
        self._detokenizer = detokenizer
        self._stop = StopStrings(request.stop)
        self._stop_token_ids = frozenset(request.sampling.stop_token_ids)
        self._undecoded: list[int] = []
        self._text = ""
        self._event = asyncio.Event()

    @property
    def done(self) -> bool:
        return self.finish_reason is not None

    @property
    def waiting(self) -> bool:
        """The engine has not admitted it yet."""
        return self.timings.admitted is None and not self.done

    def add_token(self, token_id: int) -> bool:
        """Take one sampled token. True when it completes a stop string: the engine has to be told to stop."""
        self.token_ids.append(token_id)
        if token_id not in self._stop_token_ids:
            self._undecoded.append(token_id)
            if self.request.stop:
                self._decode()
        if self.request.streaming:
            self._event.set()
        return self._stop.found

    def finish(self, reason: FinishReason, now: float, error: ApiError | None = None) -> None:
        """The last thing that happens to it; what comes later is ignored. `error`: what the client is told."""
        if self.done:
            return
        self.finish_reason = reason
        self.error = error
        self.timings.finished = now
        if self.timer is not None:
            self.timer.cancel()
        self._event.set()

    async def wait(self) -> None:
        """Until there is something new: tokens (streaming only), or the end."""
        await self._event.wait()
        self._event.clear()

    def take(self) -> str:
        """Text that may be sent now and was not taken before; all that is left when it is done."""
        self._decode()
        if self.done and not self._stop.found:
            self._text += self._stop.push(self._detokenizer.flush())
            self._text += self._stop.flush()
        text, self._text = self._text, ""
        return text

    def _decode(self) -> None:
        if self._undecoded and not self._stop.found:
            self._text += self._stop.push(self._detokenizer.push(self._undecoded))
            self._undecoded = []

"""A request until it is answered or lost, with all its attempts, for loads that account for every one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inflight_kubectl.load.answers import Answer, AnswerError, RefusalError
from inflight_kubectl.load.client import CHAT, Client

_MOST = 200
"""Characters of a reason."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one request.

    Attributes:
        answer: of the last attempt.
        kind: what went wrong, such as `HTTP 503`; empty for a whole answer.
        why: the same with details.
        refusals: responses of 503 with Retry-After, which the client obeyed.
        refused: whether the patience ended after a refusal, before the next attempt.
        begun, ended: seconds since the epoch; a request that was sent again began with its first attempt.
        port: TCP port of the client in the last attempt; None when no connection was made.
    """

    answer: Answer
    kind: str
    why: str
    refusals: int
    refused: bool
    begun: float
    ended: float
    port: int | None

    @property
    def seconds(self) -> float:
        """Seconds of the request, with all attempts."""
        return self.ended - self.begun


async def answered(
    client: Client, body: Mapping[str, Any], patience: float, show: Callable[[Answer], None] = lambda answer: None
) -> Outcome:
    """Sends a chat request until it is answered, for at most `patience` seconds. An answer is whole with the finish
    reason `stop` or `length`.

    Args:
        show: called for each event of a stream, with the answer so far.
    """
    begun, refusals, refused, kind, why = time.time(), 0, False, "", ""
    answer = Answer(time.monotonic())

    def shown(_: str) -> None:
        show(answer)

    try:
        async with asyncio.timeout(patience):
            while True:
                try:
                    await client.ask(body, answer, path=CHAT, show=shown)
                    break
                except RefusalError as error:
                    if error.status != 503 or error.retry_after is None:
                        raise
                    refusals, refused = refusals + 1, True
                    await asyncio.sleep(error.retry_after)
                    answer, refused = Answer(time.monotonic()), False
        if answer.finish_reason not in ("stop", "length"):
            kind = f"finish reason {answer.finish_reason}"
    except TimeoutError:
        kind = f"no whole answer within {patience:g} s"
    except RefusalError as error:
        kind, why = f"HTTP {error.status}", f"HTTP {error.status}: {error.reason}"
    except AnswerError as error:
        kind = error.what
    why = why or kind
    return Outcome(answer, kind[:_MOST], why[:_MOST], refusals, refused, begun, time.time(), client.port)

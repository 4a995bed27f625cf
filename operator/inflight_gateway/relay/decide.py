"""Decision after a failed attempt: retry elsewhere, wait, or return an error to the client; the
attempts so far. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from inflight_gateway.relay.http.errors import ClientError
from inflight_gateway.types import ENGINES_DIED_CODE


class Failure(Enum):
    """How an attempt ended."""

    CUT = "cut"
    """The connection was lost, or the response ended too early."""
    SILENT = "silent"
    """No byte arrived for too long, though an engine sends a heartbeat each second."""
    LATE = "late"
    """The first token did not arrive in time."""
    GARBLED = "garbled"
    """The response is no HTTP, its data are no progress frames, or they exceed what the request asks for."""
    EXCESS = "excess"
    """The answer passes a bound of its own, or all answers of its service or of the process do."""
    ENGINE = "engine"
    """The engine reports that another replica may succeed."""
    DIED = "died"
    """The engine reports that its engine process died."""
    BUSY = "busy"
    """503 for another attempt: no replica is free."""
    UNREACHABLE = "unreachable"
    """No engine accepted the connection, or the last ones did not after others had answered 503."""


_WAITED_FOR = (Failure.BUSY, Failure.UNREACHABLE)
"""Failures after which no engine has the request: another attempt follows a pause and takes nothing from the bounds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the retries of one request.

    Attributes:
        max_attempts: most replicas that one request may fail at.
        max_deaths: engines that one request may lose before the first token of an attempt, regardless of
            `max_attempts`: a request that kills engines would kill another one with each attempt.
        max_wait_s: total wait of one request while no replica is free for another attempt.
        min_pause_s, max_pause_s: bounds of the pause between two of these attempts, regardless of Retry-After.
    """

    max_attempts: int = 3
    max_deaths: int = 2
    max_wait_s: float = 60.0
    min_pause_s: float = 0.5
    max_pause_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Tried:
    """The failed attempts of one request.

    Attributes:
        failures: failed attempts, including the latest one, without those that no engine took.
        waited_s: seconds waited for a free replica.
        deaths: engines lost during an attempt that had no token yet: the request may have killed them.
    """

    failures: int
    waited_s: float = 0.0
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class Again:
    """The decision to retry. Attributes: after_s: seconds to wait first."""

    after_s: float = 0.0


def next_step(
    failure: Failure,
    tried: Tried,
    limits: Limits,
    *,
    continues: bool = True,
    retry_after_s: float | None = None,
    said: ClientError | None = None,
) -> Again | ClientError:
    """Returns the retry, or the error that ends the request; the retry budget is checked after this.

    Args:
        continues: another engine may go on: the answer has no token yet, or its service allows it.
        retry_after_s: Retry-After of the 503 response.
        said: the engine's own error; None without one.
    """
    if failure is Failure.EXCESS:
        return _ERRORS[failure]
    if not continues:
        return said or _ERRORS[failure]
    if failure in _WAITED_FOR:
        pause = min(limits.max_pause_s, max(limits.min_pause_s, 1.0 if retry_after_s is None else retry_after_s))
        if tried.waited_s + pause <= limits.max_wait_s:
            return Again(pause)
        return said or _ERRORS[failure]
    if tried.deaths >= limits.max_deaths:
        return ENGINES_DIED
    if tried.failures < limits.max_attempts:
        return Again()
    return said or _ERRORS[failure]


_ERRORS = {
    Failure.CUT: ClientError(502, "the connection to the engine broke off", "engine_lost", retry_after_s=1),
    Failure.GARBLED: ClientError(502, "the engine's answer could not be read", "engine_lost", retry_after_s=1),
    Failure.SILENT: ClientError(504, "the engine stopped responding", "engine_silent", retry_after_s=1),
    Failure.LATE: ClientError(504, "no engine produced a token in time", "first_token_late", retry_after_s=1),
    Failure.ENGINE: ClientError(503, "the engine failed", "engine_failed", retry_after_s=1),
    Failure.DIED: ClientError(503, "the engine process died", "engine_failed", retry_after_s=1),
    Failure.EXCESS: ClientError(
        502, "the engine's answer takes too much of the gateway's memory or time", "engine_lost", retry_after_s=1
    ),
    Failure.BUSY: ClientError(503, "no replica is free to go on with this request", "no_replica", retry_after_s=5),
    Failure.UNREACHABLE: ClientError(503, "no replica accepts connections", "no_replica", retry_after_s=5),
}

ENGINES_DIED = ClientError(
    502,
    "engines died while they processed this request; it is not tried again, because it may be the cause",
    ENGINES_DIED_CODE,
    final=True,
)
OUT_OF_BUDGET = ClientError(
    503, "the engine failed, and too many requests are being tried again", "retry_budget_exhausted", retry_after_s=5
)
NOT_CONTINUED = ClientError(
    502, "the engine failed, and no other could continue its answer", "not_continued", retry_after_s=1
)


class History:
    """Attempts of one request so far. Attributes: number: number of the latest attempt, from 1; 0: none yet."""

    def __init__(self) -> None:
        self.number = 0
        self._failures = self._deaths = 0
        self._failed_at: float | None = None
        self._avoid: dict[str, None] = {}

    @property
    def avoid(self) -> Collection[str]:
        """Endpoints that this request has left, in this order: they failed it, or drain."""
        return self._avoid.keys()

    def begin(self) -> None:
        """Counts an attempt that begins."""
        self.number += 1

    def moved(self, endpoint: str) -> None:
        """Notes that the request leaves an engine that drains: it has not failed."""
        self._avoid[endpoint] = None

    def failed(
        self, failure: Failure, endpoint: str, now: float, *, advanced: bool, refused: Collection[str] = ()
    ) -> Tried:
        """Adds the failure of the latest attempt.

        Args:
            endpoint: engine that had the request; empty: none.
            now: seconds of one monotonic clock.
            advanced: the answer had a token or an end of a choice from this attempt.
            refused: engines that refused it.
        """
        if failure is Failure.BUSY and not endpoint:
            # All other replicas are busy or removed; a failed one may be ready again by then.
            self._avoid.clear()
        self._avoid.update(dict.fromkeys(refused))
        if endpoint:
            self._avoid[endpoint] = None
        if failure not in _WAITED_FOR:
            self._failures += 1
            self._failed_at = now
        elif self._failed_at is None:
            self._failed_at = now
        if failure in (Failure.CUT, Failure.DIED) and endpoint and not advanced:
            self._deaths += 1
        return Tried(self._failures, now - self._failed_at, self._deaths)

"""Memory for answers in one relay process, and its bounds. Engines and slow clients decide what an answer takes."""

from __future__ import annotations

from collections import Counter

from inflight_base.manifest.keys import ServiceKey

MAX_KEPT_BYTES = 128 * 2**20
"""Most bytes of all answers under way in one process: frames that are not complete or not sent, token ids, and data
that clients have not read."""

SERVICE_SHARE = 0.5
"""Share of the bound for the answers of one service."""

_GRAIN = 4096
"""Bytes by which an answer may differ from its count: most never reach them."""


class Kept:
    """Bytes of the answers of one process. Args: most: bound on all of them."""

    def __init__(self, most: int = MAX_KEPT_BYTES) -> None:
        self.size = 0
        self._most = most
        self._of: Counter[ServiceKey] = Counter()

    def answer(self, service: ServiceKey) -> AnswerBytes:
        return AnswerBytes(self, service)

    def add(self, service: ServiceKey, more: int) -> bool:
        """Adds bytes; returns whether the process and this service stay within their bounds."""
        self.size += more
        self._of[service] += more
        if not self._of[service]:
            del self._of[service]
        return self.size <= self._most and self._of[service] <= self._most * SERVICE_SHARE


class AnswerBytes:
    """Bytes of one answer."""

    __slots__ = ("_counted", "_kept", "_service")

    def __init__(self, kept: Kept, service: ServiceKey) -> None:
        self._kept = kept
        self._service = service
        self._counted = 0

    def fits(self, size: int) -> bool:
        """Counts that the answer takes `size` bytes now; returns False if the process or its service keeps too many."""
        more = size - self._counted
        if -_GRAIN < more < _GRAIN:
            return True
        self._counted = size
        return self._kept.add(self._service, more) or more < 0

    def release(self) -> None:
        """Frees the memory of an answer that has ended; may be called again."""
        self._kept.add(self._service, -self._counted)
        self._counted = 0

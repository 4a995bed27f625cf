"""Progress of a long run on a terminal."""

from __future__ import annotations

import sys
import time

_FIRST_S, _EVERY_S = 2.0, 0.5


class TerminalProgress:
    """One line on standard error, updated in place and cleared at the end; nothing if standard error is no terminal."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = time.monotonic()
        self._next = self._begun + _FIRST_S
        self._shown = False

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        if now < self._next or not sys.stderr.isatty():
            return
        self._next = now + _EVERY_S
        left = (now - self._begun) * (1 - share) / share if share else 0.0
        print(
            f"\r{self._name}: {share:.0%} of the requests have arrived, about {left:.0f} s left \033[K",
            end="",
            file=sys.stderr,
        )
        self._shown = True

    def end(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

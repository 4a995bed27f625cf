"""SIGTERM as an exit: `finally` blocks run, so that what a program started ends with it."""

from __future__ import annotations

import signal
import sys


def exit_on_sigterm() -> None:
    """From now on SIGTERM raises SystemExit with 128 + its number, the exit code that a shell shows for it."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))

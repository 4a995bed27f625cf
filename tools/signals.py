"""Signals as exceptions: `finally` blocks run, so that what a program started ends with it."""

from __future__ import annotations

import signal
import sys


def exit_on_signals() -> None:
    """Raise SystemExit on SIGTERM, with the exit code that a shell shows for it, and KeyboardInterrupt on SIGINT.

    A shell starts the background jobs of a script with SIGINT ignored, and programs inherit that. They do not inherit
    handlers: with one here, what this process starts has the default again.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    signal.signal(signal.SIGINT, signal.default_int_handler)

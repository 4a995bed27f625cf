"""The end of a program: signals as exceptions, so that what it started ends with it, and its exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable


def exit_on_signals() -> None:
    """Raise SystemExit on SIGTERM, with the exit code that a shell shows for it, and KeyboardInterrupt on SIGINT.

    A shell starts the background jobs of a script with SIGINT ignored, and programs inherit that. They do not inherit
    handlers: with one here, what this process starts has the default again.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    signal.signal(signal.SIGINT, signal.default_int_handler)


def exit_code(run: Callable[[], int], *errors: type[Exception], stopped: str = "stopped") -> int:
    """The exit code of a program.

    Args:
        run: the program; returns its exit code.
        errors: end the program with 1 and their message as a line on standard error.
        stopped: the line after Ctrl-C.
    """
    try:
        return run()
    except errors as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(stopped, file=sys.stderr)
    return 1

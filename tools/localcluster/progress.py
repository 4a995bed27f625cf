"""Progress lines: the current step, its progress and its duration."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str], None]
"""Receives one line of text, without a newline; may be called from several threads."""

HEARTBEAT_SECONDS = 15.0


def to_stdout() -> Progress:
    """A progress function that prints each line with the seconds since this call, one line at a time."""
    start = time.monotonic()
    lock = threading.Lock()

    def show(line: str) -> None:
        with lock:
            print(f"[{time.monotonic() - start:6.1f} s] {line}", flush=True)

    return show


@contextmanager
def meanwhile(call: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call `call` every `seconds` from another thread while the block runs."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            call()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def step(progress: Progress, task: str, detail: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Announce `task`, say every 15 s that it still runs (with `detail()`), and say how long it took."""
    progress(task)
    start = time.monotonic()

    def beat() -> None:
        extra = detail()
        progress(f"{task}: {time.monotonic() - start:.0f} s so far{', ' + extra if extra else ''}")

    with meanwhile(beat, HEARTBEAT_SECONDS):
        yield
    # Not reached when the block raised: the error says why.
    progress(f"{task}: done in {time.monotonic() - start:.1f} s")

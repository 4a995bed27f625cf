"""An event loop in a thread of its own, for what must go on while the process's loop is busy."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """Runs coroutines in a thread of its own while it is entered.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)

    def __enter__(self) -> LoopThread:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends the thread; everything that `run` was given must have ended."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs `work` in the thread and returns its result. On cancellation `work` is cancelled and has ended before
        this returns, also if it is cancelled again meanwhile.

        Raises:
            Exception: raised by `work`.
        """
        here, ended = asyncio.get_running_loop(), asyncio.Event()
        started: list[asyncio.Task[Result]] = []

        def start() -> None:
            task = self._loop.create_task(work)
            started.append(task)
            task.add_done_callback(lambda _: here.call_soon_threadsafe(ended.set))

        self._loop.call_soon_threadsafe(start)
        try:
            await ended.wait()
        except asyncio.CancelledError:
            self._loop.call_soon_threadsafe(lambda: started[0].cancel())
            while not ended.is_set():
                with suppress(asyncio.CancelledError):
                    await ended.wait()
            raise
        return started[0].result()

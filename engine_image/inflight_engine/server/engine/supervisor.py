"""Supervisor of the engine process: kills one that hangs, and restarts one that has exited."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path

from inflight_engine.server.engine.phase import Phase
from inflight_engine.server.engine.process import EngineProcess, describe_exit
from inflight_engine.server.engine.session import EngineSession
from inflight_engine.server.engine.spare import Spare
from inflight_settings.engine import EngineConfig

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
"""Seconds between two checks of the engine's progress."""

LEAST_RESTART_SECONDS = 60.0
RESTART_FACTOR = 3.0
"""Start-up limit of a new engine process, as a multiple of the first one's time, and at least
`LEAST_RESTART_SECONDS`."""


class Supervisor:
    """Kills an engine process that hangs, and starts another one for one that has exited.

    Attributes:
        process: the current engine process.
        spare: takes over where there is one.
        start_seconds: seconds that the first one took from its start until ready.
    """

    def __init__(self, session: EngineSession, config: EngineConfig, process: EngineProcess, spare: Spare) -> None:
        self.process = process
        self.spare = spare
        self.start_seconds = 0.0
        self._session = session
        self._config = config
        self._restarts = 0

    async def run(self) -> None:
        """Run until cancelled. If a new engine process cannot be started, the session fails."""
        watching = asyncio.create_task(self._watch())
        try:
            while True:
                await self._session.lost.wait()
                self._session.lost.clear()
                try:
                    await self._restart()
                except Exception as error:
                    log.exception("another engine process cannot be started")
                    self._session.fail(f"another engine process cannot be started: {error}")
        finally:
            watching.cancel()

    @property
    def _restart_seconds(self) -> float:
        return max(LEAST_RESTART_SECONDS, RESTART_FACTOR * self.start_seconds)

    async def _restart(self) -> None:
        session, config = self._session, self._config
        self._restarts += 1
        # The old process frees its memory first, as do processes of other ranks: the next one uses the free memory.
        await asyncio.to_thread(self.process.kill)
        log.info("the lost engine process %s", describe_exit(self.process.wait(0)))
        if session.record is not None:
            session.record = _segment(Path(config.record or ""), self._restarts)
            config = replace(config, record=str(session.record))
            log.info("the recording goes on in %s", session.record)
        spare = await asyncio.to_thread(self.spare.take)
        session.taken_over = spare is not None
        self.process = self.process.successor() if spare is None else spare
        self.process.load(config)
        await session.link.connect(self.process.socket)

    async def _watch(self) -> None:
        session, last = self._session, time.monotonic()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = time.monotonic()
            late = now - last - CHECK_SECONDS
            if late > CHECK_SECONDS:
                session.progress.excuse(late)
            last = now
            self.spare.check(now, self.process)
            session.sleep_if_due(now)
            if session.hung:
                session.lose("the engine process hung: it made no progress in its step")
            elif session.phase is Phase.RESTARTING and now - session.lost_at > self._restart_seconds:
                session.fail("the engine process was restarted and was not ready in time")


def _segment(path: Path, number: int) -> Path:
    """The file name of a recording after `number` restarts: `run.jsonl.gz` becomes `run.restart-1.jsonl.gz`."""
    stem, dot, suffixes = path.name.partition(".")
    return path.with_name(f"{stem}.restart-{number}{dot}{suffixes}")

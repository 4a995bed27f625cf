"""A process that waits, with its modules imported, to take over from an engine process that dies."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from inflight_engine.server.engine.phase import Phase
from inflight_engine.server.engine.process import EngineProcess, describe_exit
from inflight_engine.server.engine.session import EngineSession, Restarts

if TYPE_CHECKING:
    from inflight_settings.server import SpareProcess

SPARE_BYTES = 300 << 20
"""Memory that a spare takes beside the pages that it shares with the engine process, with a torch that has CUDA."""
SETTLE_SECONDS = 30.0
"""Time from when the engine is ready until `auto` starts a spare: a server that has just started has requests waiting,
and so have others that start on the same machine. One that was woken for a few requests is gone before that."""

IMPORT_SECONDS = 2.0
"""Time in which a spare that takes over has to have imported its modules. It has the lowest priority, which cannot be
raised again: where others keep the CPUs busy, a new process is there first."""

log = logging.getLogger(__name__)


class Spare:
    """At most one spare process, started where `wanted` says so while the engine is ready.

    It is started as often as an engine process would be restarted, and then there is none for a while.
    """

    def __init__(self, wanted: SpareProcess, session: EngineSession) -> None:
        self._wanted = wanted
        self._session = session
        self._process: EngineProcess | None = None
        self._starts = Restarts()
        self._due: float | None = None

    @property
    def pid(self) -> int | None:
        """Number of the process; None: there is none."""
        return None if self._process is None else self._process.pid

    def check(self, now: float, running: EngineProcess) -> None:
        """Start one beside the running engine process if it is time (`now`: seconds, monotonic); bury a dead one."""
        if self._wanted == "off" or self._session.phase is not Phase.READY:
            self._due = None
            return
        if self._due is None:
            self._due = now + (SETTLE_SECONDS if self._wanted == "auto" else 0.0)
        if self._process is not None and (status := self._process.wait(0)) is not None:
            self.end()
            log.warning("the spare engine process %s", describe_exit(status))
            self._due = now + SETTLE_SECONDS
        if self._process is None and now >= self._due and self._fits() and self._starts.begin(now):
            try:
                self._process = running.successor(spare=True)
            except OSError as error:
                log.warning("no spare engine process can be started: %s", error.strerror)
                self._due = now + SETTLE_SECONDS

    def take(self) -> EngineProcess | None:
        """Hand over the process, which waits for its configuration; None: there is none. Takes up to
        `IMPORT_SECONDS`."""
        process = self._process
        if process is not None and not process.imported(IMPORT_SECONDS):
            log.warning("the spare engine process has not imported its modules, or is gone: another one is started")
            self.end()
        process, self._process = self._process, None
        return process

    def end(self) -> None:
        """End the process; also while another thread is in `take`."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _fits(self) -> bool:
        ready = self._session.ready
        return self._wanted == "on" or (ready is not None and ready.runner.memory_left >= SPARE_BYTES)

"""The thread that reads and writes blocks on the disk, so that no step waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from inflight_engine.block_events import DISK, BlocksStored
from inflight_engine.cache.tiers import Content
from inflight_engine.disk.store import DiskStore
from inflight_engine.disk.work import DiskWork
from inflight_engine.tier_loads import Done, HostBlocks

log = logging.getLogger(__name__)


class DiskThread(DiskWork):
    """Opens a store, then does what is to be done.

    Args:
        open_store: called on the thread, as `content` and `wake` are.
    """

    def __init__(
        self,
        open_store: Callable[[], DiskStore],
        memory: HostBlocks,
        *,
        content: Callable[[int], Content | None],
        wake: Callable[[], None],
        events: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(memory, content=content, wake=wake, events=events, clock=clock)
        self._open_store = open_store
        self._closed = False
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_open(self, seconds: float) -> bool:
        """Wait until blocks can be found, or it is known that there is no store; False: it takes longer."""
        return self._opened.wait(seconds)

    def close(self, seconds: float = 1.0) -> None:
        """End the thread after the block that it is at. Waits so long at most."""
        with self._work:
            self._closed = True
            self._work.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            store = self._open_store()
        except Exception as error:
            log.warning("the KV cache goes on without its disk: %s", error)
            self._opened.set()
            return
        store.lost = self._lost
        if self._events is not None and store.usage():
            self._events.append(BlocksStored(b"".join(store.hashes()), b"", b"", b"", DISK))
        log.info("the disk has %d blocks of the KV cache", store.usage())
        self._store = store
        self._opened.set()
        try:
            while self._work_once(store):
                pass
        except Exception:
            log.exception("the KV cache goes on without its disk")
        with self._work:
            self._store = None
            self._results.extend(Done(read.number, []) for read in self._reads)
            self._reads.clear()
        self._wake()
        store.close()

    def _work_once(self, store: DiskStore) -> bool:
        """Wait for something to do, and do it; False: the thread should end."""
        with self._work:
            while not self._closed:
                job = self.next()
                if job is not None:
                    break
                self._work.wait()
            else:
                return False
        self.end(self.do(store, job))
        return True

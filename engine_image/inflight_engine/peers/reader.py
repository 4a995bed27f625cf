"""Reads blocks of a request from the engine that began it, so that no step waits for it."""

from __future__ import annotations

import http.client
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import numpy as np

from inflight_contract.kv_blocks import MOST_BLOCKS, PATH, KVSource
from inflight_engine.request import Request
from inflight_engine.signed_call import signed_call
from inflight_engine.tier_loads import Done, HostBlocks, Read

log = logging.getLogger(__name__)

_PIECE_BYTES = 8 << 20
"""Bytes of one read: the other engine holds them in memory, and copies them between two steps."""
_MOST_READS = 4
"""Reads at once."""
_ANSWER_SECONDS = 5.0
"""Time in which the other engine answers, and sends more bytes."""
_READ_SECONDS = 10.0
"""Time of a read."""
_REST_SECONDS = 10.0
"""Time for which an engine that failed is not asked."""
_WEIGHT = 0.2
"""Weight of the latest read in the running mean."""
_CHECKSUM = np.dtype("<i8")


class PeerError(Exception):
    """The other engine did not do what it should. The message is a sentence."""


class PeerReader:
    """A `Reader` of what the sources of requests have. One that fails costs what it has, and nothing else.

    Args:
        block_bytes: of a block.
        wake: called on a thread when results are there.

    Attributes:
        piece, seconds_per_block, read_at: as of `Reader`.
        num_loaded: blocks read. num_failed: reads that failed.
    """

    stalled = 0.0

    def __init__(
        self,
        memory: HostBlocks,
        block_bytes: int,
        *,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.piece = max(1, min(MOST_BLOCKS, _PIECE_BYTES // block_bytes))
        self.seconds_per_block = self.read_at = 0.0
        self.num_loaded = self.num_failed = 0
        self._memory = memory
        self._block_bytes = block_bytes
        self._wake = wake
        self._clock = clock
        self._reads: dict[int, int] = {}
        """Blocks of each read that is not done, by its number."""
        self._results: deque[Done] = deque()
        self._resting: dict[str, float] = {}
        """By pod, the clock until which it is not asked."""
        self._threads = ThreadPoolExecutor(_MOST_READS, "peer")

    @property
    def ready(self) -> bool:
        """See `Reader`."""
        return bool(self._results)

    @property
    def num_reads(self) -> int:
        """See `Reader`."""
        return sum([*self._reads.values()])

    @property
    def busy(self) -> bool:
        """See `Reader`."""
        return bool(self._reads or self._results)

    def finds(self, request: Request, block_hash: bytes) -> bool:
        """Return whether the source of a request may have its blocks."""
        source = request.kv_source
        return source is not None and self._resting.get(source.pod, 0.0) <= self._clock()

    def load(self, read: Read) -> None:
        """See `Reader`."""
        self._reads[read.number] = len(read.hashes)
        self._threads.submit(self._read, read)

    def give_up(self) -> None:
        """Do nothing: each read ends soon."""

    def take(self) -> list[Done]:
        """See `Reader`."""
        return [self._results.popleft() for _ in range(len(self._results))]

    def close(self) -> None:
        """Begin no read any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, read: Read) -> None:
        assert read.source is not None
        started, checksums = self._clock(), list[int]()
        try:
            if self._resting.get(read.source.pod, 0.0) <= started:
                self._fetch(read, read.source, checksums)
        except Exception as error:
            checksums.clear()
            self.num_failed += 1
            self._resting[read.source.pod] = self._clock() + _REST_SECONDS
            log.warning("%s gives no blocks of the KV cache: %s", read.source.address, error)
        if checksums:
            self.read_at = self._clock()
            seconds, mean = (self.read_at - started) / len(checksums), self.seconds_per_block
            self.seconds_per_block = mean + _WEIGHT * (seconds - mean) if mean else seconds
            self.num_loaded += len(checksums)
        self._results.append(Done(read.number, checksums))
        del self._reads[read.number]
        self._wake()

    def _fetch(self, read: Read, source: KVSource, checksums: list[int]) -> None:
        """Ask for blocks, and put them where they belong.

        Args:
            checksums: gets those of the leading blocks, which have come.

        Raises:
            PeerError, OSError, HTTPException, ApiError, ValueError: it does not answer as it should.
        """
        body = b"".join(read.hashes)
        with signed_call(source.pod, source.address, "POST", PATH, body, seconds=_ANSWER_SECONDS) as answer:
            if answer.http.status != http.client.OK:
                raise PeerError(f"it answers with status {answer.http.status}")
            length = int(answer.http.headers.get("content-length", "-1"))
            count, rest = divmod(length, _CHECKSUM.itemsize + self._block_bytes)
            if rest or not 0 <= count <= len(read.places):
                raise PeerError("its answer has another length than blocks have")
            sums = answer.http.read(count * _CHECKSUM.itemsize)
            if not answer.proves(sha256(sums).hexdigest()):
                raise PeerError("its checksums are not signed with the admin token")
            until = time.monotonic() + _READ_SECONDS
            for place in read.places[:count]:
                _read_into(answer.http, self._memory.row(place), until)
        checksums += np.frombuffer(sums, _CHECKSUM).tolist()


def _read_into(answer: http.client.HTTPResponse, row: memoryview, until: float) -> None:
    """Raises OSError: fewer bytes come, or too slowly."""
    done = 0
    while done < len(row):
        count = answer.readinto(row[done:])
        if not count:
            raise OSError("the connection ended in the middle of a block")
        done += count
        if time.monotonic() > until:
            raise TimeoutError("its blocks come too slowly")

"""Blocks of weights from other engines of the service, before they are asked of the source.

Each block has an order of the engines, by rendezvous hashing (Thaler and Ravishankar, 1998, "Using name-based mappings
to increase hit rates"). An engine waits only for those before it, so that no two wait for each other; the first one
reads the source. So engines that start at once read the source once together, and send each other equal parts.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from inflight_contract import admin_token
from inflight_contract.errors import ApiError
from inflight_contract.model_blocks import CHECKSUMS_HEADER, PATH
from inflight_engine.models.remote.cached import checksums
from inflight_engine.signed_call import signed_call

_LOOK_SECONDS = 1.0
"""Time between two looks into the file of peers."""
_ANSWER_SECONDS = 5.0
"""Time in which a peer answers, and sends more bytes."""
_BLOCK_SECONDS = 20.0
"""Time in which a peer sends a block."""
_PATIENCE_SECONDS = 15.0
"""Time to wait for peers that load a block, or are busy, before the source is read."""
_REST_SECONDS = 30.0
"""Time for which a peer that failed is not asked."""
_LONG_REST_SECONDS = 300.0
"""Likewise, where it will probably fail again."""
_BUSY_SECONDS = 1.0
"""Time until a busy peer is asked again."""
_READ_BYTES = 256 << 10

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Peer:
    """`pod`: uid. `address`: `IP:PORT` of the admin port."""

    pod: str
    address: str


class PeerError(Exception):
    """A peer did not do what it should. The message is a sentence. `rest`: seconds for which it is not asked."""

    def __init__(self, message: str, rest: float = _REST_SECONDS) -> None:
        super().__init__(message)
        self.rest = rest


class PeerCounts:
    """Bytes that were read from peers and from the source, and how often a peer failed."""

    def __init__(self) -> None:
        self.peer_bytes = self.source_bytes = self.failures = 0
        self._lock = threading.Lock()

    def add(self, *, peer_bytes: int = 0, source_bytes: int = 0, failures: int = 0) -> None:
        with self._lock:
            self.peer_bytes += peer_bytes
            self.source_bytes += source_bytes
            self.failures += failures


@cache
def peers_in(file: str) -> Peers:
    """Return the peers that a file names: in one process they are known, and rest, for all that read."""
    return Peers(Path(file))


class Peers:
    """The engines that `file` names, as `PEERS_FILE`; it is read again when it changes. Methods can run in any thread.

    Attributes:
        counts: of all reads.
    """

    def __init__(self, file: Path) -> None:
        self.counts = PeerCounts()
        self._file = file
        self._own = os.environ.get(admin_token.POD_VARIABLE, "")
        self._lock = threading.Lock()
        self._listed: Sequence[Peer] = ()
        self._looked = float("-inf")
        self._resting: dict[Peer, float] = {}
        self._complained = ""

    def wait_for(self, entry: str, number: int) -> None:
        """Wait until a peer before this one has a block, as long as one loads it.

        Args:
            entry, number: as of `PATH`.
        """
        until = time.monotonic() + _PATIENCE_SECONDS
        for peer in self._ordered(entry, number):
            if peer.pod == self._own:
                return
            while self._usable(peer):
                status = self._has(peer, entry, number)
                if status == http.client.OK:
                    return
                if status != http.client.TOO_EARLY:
                    break
                if time.monotonic() > until:
                    self._rest(peer, PeerError("it does not get on with loading", _LONG_REST_SECONDS))
                    return

    def read(self, entry: str, number: int, num_bytes: int) -> memoryview | None:
        """Read a block of so many bytes from a peer that has it; None: none has it, or has time."""
        until = time.monotonic() + _PATIENCE_SECONDS
        asked = [peer for peer in self._ordered(entry, number) if peer.pod != self._own]
        while asked:
            busy = []
            for peer in asked:
                if not self._usable(peer):
                    continue
                try:
                    status, data = self._fetch(peer, entry, number, num_bytes)
                except PeerError as error:
                    self._rest(peer, error)
                    continue
                if data is not None:
                    self.counts.add(peer_bytes=num_bytes)
                    return data
                if status == http.client.SERVICE_UNAVAILABLE:
                    busy.append(peer)
            if busy and time.monotonic() > until:
                for peer in busy:
                    self._rest(peer, PeerError("it is busy"))
                return None
            asked = busy
            if asked:
                time.sleep(_BUSY_SECONDS * random.uniform(0.5, 1.0))
        return None

    def _ordered(self, entry: str, number: int) -> list[Peer]:
        """Return the peers, and this one where it is named, in the block's order."""

        def score(peer: Peer) -> bytes:
            return hashlib.sha256(f"{entry}/{number}/{peer.pod}".encode()).digest()

        return sorted(self._look(), key=score)

    def _look(self) -> Sequence[Peer]:
        with self._lock:
            if time.monotonic() - self._looked >= _LOOK_SECONDS:
                self._looked = time.monotonic()
                try:
                    found = json.loads(self._file.read_bytes())
                    self._listed = [Peer(str(pod), str(address)) for pod, address in found.items()]
                except FileNotFoundError:
                    self._listed = ()
                except (OSError, ValueError, AttributeError) as error:
                    self._complain(f"{self._file} cannot be read ({error}): no peers are asked")
                    self._listed = ()
            return self._listed

    def _usable(self, peer: Peer) -> bool:
        with self._lock:
            return self._resting.get(peer, 0.0) <= time.monotonic()

    def _rest(self, peer: Peer, error: PeerError) -> None:
        """Do not ask a peer for some time. Threads that failed at the same time say so once."""
        with self._lock:
            first = self._resting.get(peer, 0.0) <= time.monotonic()
            self._resting[peer] = max(self._resting.get(peer, 0.0), time.monotonic() + error.rest)
        if first:
            self.counts.add(failures=1)
            log.warning("peer %s at %s is not asked for %g s: %s", peer.pod, peer.address, error.rest, error)

    def _complain(self, sentence: str) -> None:
        if sentence != self._complained:
            self._complained = sentence
            log.warning("%s", sentence)

    def _has(self, peer: Peer, entry: str, number: int) -> int | None:
        """Ask whether a peer has a block. Returns the status of `HEAD`; None: it failed, and rests."""
        try:
            status, _ = self._fetch(peer, entry, number, None)
        except PeerError as error:
            self._rest(peer, error)
            return None
        return status

    def _fetch(self, peer: Peer, entry: str, number: int, num_bytes: int | None) -> tuple[int, memoryview | None]:
        """Ask a peer for a block. Returns the status, and with 200 the bytes.

        Args:
            num_bytes: None: only for the status.

        Raises:
            PeerError: it does not answer as it should.
        """
        method = "HEAD" if num_bytes is None else "GET"
        path = PATH.format(entry=entry, number=number)
        try:
            with signed_call(peer.pod, peer.address, method, path, seconds=_ANSWER_SECONDS) as answer:
                status = answer.http.status
                if status in _UNUSED:
                    return status, None
                if status != http.client.OK:
                    rest = _LONG_REST_SECONDS if status < http.client.INTERNAL_SERVER_ERROR else _REST_SECONDS
                    raise PeerError(f"it answers with status {status}", rest)
                if num_bytes is None:
                    return status, None
                data = _read_all(answer.http, num_bytes)
        except (OSError, http.client.HTTPException) as error:
            raise PeerError(f"{type(error).__name__}: {error}") from None
        except ApiError as error:
            raise PeerError(str(error), _LONG_REST_SECONDS) from None
        except ValueError:
            raise PeerError("its address is no IP:PORT", _LONG_REST_SECONDS) from None
        expected = answer.http.headers.get(CHECKSUMS_HEADER, "")
        if not answer.proves(expected):
            raise PeerError("its checksums are not signed with the admin token", _LONG_REST_SECONDS)
        if checksums(data).hex() != expected:
            raise PeerError(f"block {number} of a file is damaged", _LONG_REST_SECONDS)
        return status, data


_UNUSED = (http.client.NOT_FOUND, http.client.TOO_EARLY, http.client.SERVICE_UNAVAILABLE)
"""Statuses of a peer that works, without a block."""


def _read_all(answer: http.client.HTTPResponse, num_bytes: int) -> memoryview:
    """Raises OSError: fewer bytes come, or too slowly."""
    data, done = memoryview(bytearray(num_bytes)), 0
    until = time.monotonic() + _BLOCK_SECONDS
    while done < num_bytes:
        part = answer.read1(min(_READ_BYTES, num_bytes - done))
        if not part:
            raise OSError(f"{done} of {num_bytes} bytes came")
        data[done : done + len(part)] = part
        done += len(part)
        if time.monotonic() > until:
            raise TimeoutError(f"{done} of {num_bytes} bytes came in {_BLOCK_SECONDS:g} s")
    return data

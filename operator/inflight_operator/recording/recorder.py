"""Writes inputs and outputs of each round's decision for replay: `inflight-simulate replay-decisions`. Its files are
bounded in number and size, and the oldest is deleted first."""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import zstandard

from inflight_base.manifest.keys import ServiceKey
from inflight_base.recording import compressor, packed
from inflight_operator.reconcile.memory import Memory
from inflight_operator.reconcile.plan import Plan
from inflight_operator.reconcile.snapshot import Snapshot
from inflight_operator.recording.codec import KIND, VERSION, RoundCodec

logger = logging.getLogger(__name__)

MEBIBYTE = 2**20
DEFAULT_MEBIBYTES = 64
"""Default size of all files together, in MiB."""

PLACEHOLDER = b"token-not-recorded-"
"""Text that replaces a service's admin token and tenant key, repeated to their length, also in a replay."""

FILES = 4
"""Number of files that share the size of the recording: at most a quarter of it is lost with the oldest file."""

FLUSH_BYTES = 256 * 1024
"""Bytes of rounds, before compression, that are written at once."""

FLUSH_SECONDS = 10.0
"""Seconds between two flushes: at most so many seconds of rounds are lost when the process is killed."""


class RotatedFiles:
    """Rounds in `decisions-NUMBER.zst`; numbers go on from those that are in the folder.

    Args:
        header: makes the beginning of each file.
        max_bytes: maximum size of all files in the folder together.
    """

    def __init__(self, folder: Path, header: Callable[[], bytes], max_bytes: int) -> None:
        self._folder = folder
        self._header = header
        self._max_bytes = max_bytes
        self._file: BinaryIO | None = None
        self._compressor = compressor()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._bytes = 0
        self._flushed = float("-inf")

    def write(self, content: bytes, now: float) -> None:
        """Adds to the file; begins another one where the last is full.

        Args:
            now: time on the steady clock.

        Raises:
            OSError: it cannot be written.
        """
        if self._file is not None and self._bytes >= self._max_bytes // FILES:
            self.close()
        if self._file is None:
            self._open()
        self._pending.append(content)
        self._pending_bytes += len(content)
        if self._pending_bytes >= FLUSH_BYTES or now - self._flushed >= FLUSH_SECONDS:
            self._flushed = now
            self._flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)

    def close(self) -> None:
        """
        Raises:
            OSError: the rest cannot be written.
        """
        if self._file is None:
            return
        self._flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)
        self.abandon()

    def abandon(self) -> None:
        """Leaves the file as it is."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self) -> None:
        there = sorted(self._folder.glob("decisions-*.zst"))
        for old in there:
            if sum(one.stat().st_size for one in there if one.exists()) <= self._max_bytes * (FILES - 1) // FILES:
                break
            old.unlink()
        number = max((_number(one) for one in there), default=0) + 1
        self._file = (self._folder / f"decisions-{number:06}.zst").open("xb", buffering=0)
        self._compressor = compressor()
        self._pending, self._pending_bytes, self._bytes = [self._header()], 0, 0

    def _flush(self, mode: int) -> None:
        compressed = self._compressor.compress(b"".join(self._pending)) + self._compressor.flush(mode)
        self._pending, self._pending_bytes = [], 0
        self._bytes += len(compressed)
        while compressed and self._file is not None:
            compressed = compressed[self._file.write(compressed) :]


def _number(path: Path) -> int:
    digits = path.name.removeprefix("decisions-").removesuffix(".zst")
    return int(digits) if digits.isdigit() else 0


class DecisionRecorder:
    """Records decisions. A recording never affects a round: if it cannot continue (a full disk), it ends with one
    warning in the log, and its files stay readable. Admin tokens and tenant keys are not written.

    Args:
        folder: made when it is missing.
        services: services to record; empty records all.
        max_bytes: maximum size of all files in the folder together; exceeded by less than one flush.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(
        self, folder: Path, services: Collection[str] = (), max_bytes: int = DEFAULT_MEBIBYTES * MEBIBYTE
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._services = frozenset(services)
        self._codec = RoundCodec()
        self._files = RotatedFiles(folder, self._header, max_bytes)
        self._ended = False

    def decided(self, key: ServiceKey, snapshot: Snapshot, memory: Memory, plan: Plan) -> None:
        """Records a decision of a service; to be called after each."""
        if self._ended or (self._services and str(key) not in self._services):
            return
        try:
            self._write(key, snapshot, memory, plan)
        except Exception as error:  # a recording error must not stop rounds
            self._end(error)

    def close(self) -> None:
        """Flushes buffered rounds to the file."""
        if self._ended:
            return
        try:
            self._files.close()
        except OSError as error:
            self._end(error)

    def _write(self, key: ServiceKey, snapshot: Snapshot, memory: Memory, plan: Plan) -> None:
        message = without(self._codec.encode((snapshot, memory, plan)), tokens_in(snapshot, memory))
        self._files.write(packed(str(key), message), snapshot.now)

    def _header(self) -> bytes:
        started = datetime.now(UTC).isoformat(timespec="seconds")
        header = {"recording": KIND, "version": VERSION, "started": started, "types": self._codec.types}
        return json.dumps(header).encode() + b"\n"

    def _end(self, error: Exception) -> None:
        self._ended = True
        self._files.abandon()
        logger.warning("decisions are no longer recorded: %s", error, exc_info=not isinstance(error, OSError))


def tokens_in(snapshot: Snapshot, memory: Memory) -> set[str]:
    """Returns all admin tokens and tenant keys that a round may have seen: the children may have been rendered with
    earlier ones."""
    seen, rendered = {snapshot.admin_token, *snapshot.tenant_keys}, memory.rendered
    if rendered is not None:
        seen |= {rendered.plan.admin_token, *rendered.plan.tenant_keys}
    return seen - {""}


def without(message: bytes, tokens: Collection[str]) -> bytes:
    """Returns the message with a placeholder of the same length for each token, wherever it is, and for its base64, as
    Secrets have it."""
    for token in map(str.encode, tokens):
        placeholder = (PLACEHOLDER * len(token))[: len(token)]
        message = message.replace(token, placeholder).replace(b64encode(token), b64encode(placeholder))
    return message

"""Writes inputs and outputs of each round's decision for replay: `inflight-simulate replay-decisions`."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from inflight_base.manifest.keys import ServiceKey
from inflight_operator.reconcile.memory import Memory
from inflight_operator.reconcile.plan import Plan
from inflight_operator.reconcile.snapshot import Snapshot
from inflight_operator.recording.codec import Written
from inflight_operator.recording.files import RotatedFiles
from inflight_operator.recording.lines import KIND, PLACEHOLDER, VERSION, RoundCodec

logger = logging.getLogger(__name__)

MEBIBYTE = 2**20
DEFAULT_MEBIBYTES = 64
"""Of all files together."""

WHOLE_EVERY = 200
"""Rounds of a service after which one is written whole again, to bound the memory of a reader."""

FORGET_EVERY = 4
"""Rounds of a service after which unused values are released."""

_JSON = json.JSONEncoder(separators=(",", ":"))


@dataclass(slots=True)
class _Stream:
    """The rounds of one service in one file, from one that was written whole on."""

    uid: str
    file: int
    known: Written = field(default_factory=Written)
    rounds: int = 0


class DecisionRecorder:
    """A recording never affects a round: if it cannot continue (a full disk), it ends with one warning in the log, and
    its files stay readable. Admin tokens and tenant keys are not written.

    Args:
        folder: made when it is missing.
        services: those to record; empty records all.
        max_bytes: of all files in the folder together; passed by less than one flush.

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
        self._streams: dict[ServiceKey, _Stream] = {}
        self._ended = False

    def decided(self, key: ServiceKey, snapshot: Snapshot, memory: Memory, plan: Plan) -> None:
        """To be called after each decision of a service."""
        if self._ended or (self._services and str(key) not in self._services):
            return
        try:
            self._write(key, snapshot, memory, plan)
        except Exception as error:  # a recording error must not stop rounds
            self._end(error)

    def forget(self, key: ServiceKey) -> None:
        """Removes a deleted service."""
        self._streams.pop(key, None)

    def close(self) -> None:
        """Flushes buffered rounds to the file."""
        if self._ended:
            return
        try:
            self._files.close()
        except OSError as error:
            self._end(error)

    def _write(self, key: ServiceKey, snapshot: Snapshot, memory: Memory, plan: Plan) -> None:
        file, uid = self._files.begin(), snapshot.service.metadata.uid
        stream = self._streams.get(key)
        if stream is None or (stream.file, stream.uid) != (file, uid) or stream.rounds == WHOLE_EVERY:
            stream = self._streams[key] = _Stream(uid, file)
        stream.known.begin()
        line = {
            "service": str(key),
            "whole": stream.rounds == 0,
            **self._codec.write(snapshot, memory, plan, stream.known),
        }
        text = without(_JSON.encode(line), tokens_in(snapshot, memory))
        self._files.write(text.encode() + b"\n", snapshot.now)
        stream.rounds += 1
        if stream.rounds % FORGET_EVERY == 0:
            stream.known.forget()

    def _header(self) -> bytes:
        started = datetime.now(UTC).isoformat(timespec="seconds")
        header = {"recording": KIND, "version": VERSION, "started": started, "types": self._codec.types}
        return _JSON.encode(header).encode() + b"\n"

    def _end(self, error: Exception) -> None:
        self._ended = True
        self._streams.clear()
        self._files.abandon()
        logger.warning("decisions are no longer recorded: %s", error, exc_info=not isinstance(error, OSError))


def tokens_in(snapshot: Snapshot, memory: Memory) -> set[str]:
    """All admin tokens and tenant keys that a round may have seen: the children may have been rendered with earlier
    ones."""
    seen, rendered = {snapshot.admin_token, snapshot.tenant_key}, memory.rendered
    if rendered is not None:
        seen |= {rendered.plan.admin_token, rendered.plan.tenant_key}
    return seen - {""}


def without(text: str, tokens: Collection[str]) -> str:
    """JSON text with a placeholder for each token, wherever it is, and for its base64, as Secrets have it."""
    for token in tokens:
        text = text.replace(json.dumps(token)[1:-1], PLACEHOLDER).replace(_base64(token), _base64(PLACEHOLDER))
    return text


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()

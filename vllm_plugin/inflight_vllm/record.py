"""Records steps in the format of `inflight-engine serve --record`, for `inflight-simulate calibrate`.

A record of vLLM has the steps' work and seconds only: no requests, so it cannot be replayed. Format: the engine's
`recording/lines.py`, version 10, uncompressed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from inflight_cost.model import StepWork
from inflight_settings.limits import Limits

FILE_VARIABLE = "INFLIGHT_RECORD_FILE"
_HEADER_TAG, _VERSION = "inflight-engine schedule", 10
_BUFFER_BYTES = 1 << 18

log = logging.getLogger("vllm.inflight")


def open_record(path: Path, capacity: Limits, sizes: Mapping[str, int]) -> StepRecord | None:
    """Make a record; None, with a warning: the file cannot be written."""
    try:
        return StepRecord(path, capacity, sizes)
    except OSError as error:
        log.warning("inflight: steps cannot be recorded: %s: %s", path, error.strerror or error)
        return None


class StepRecord:
    """A file of steps; one that cannot be written any more ends with a warning.

    Args:
        sizes: `num_blocks`, `block_size`, `max_model_len` and `prefix_caching` of the engine, as in the twin's.
    """

    def __init__(self, path: Path, capacity: Limits, sizes: Mapping[str, int]) -> None:
        """
        Raises:
            OSError: the file cannot be written.
        """
        self._file: TextIO | None = path.open("w", buffering=_BUFFER_BYTES)
        self._steps = 0
        config = {"capacity": asdict(capacity), "kv_headroom": 0.0, **sizes}
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        header = {"record": _HEADER_TAG, "version": _VERSION, "program": "inflight-vllm", "started": started}
        self._file.write(json.dumps({**header, "config": config}) + "\n")
        self.flush()

    def step(self, work: StepWork, seconds: float) -> None:
        """Add a step."""
        if self._file is None:
            return
        line = json.dumps(["step", self._steps, round(seconds * 1e6), work, 0, [], False, [], [], []])
        self._steps += 1
        try:
            self._file.write(line + "\n")
        except OSError as error:
            self._end(error)

    def flush(self) -> None:
        """Write what is buffered."""
        if self._file is None:
            return
        try:
            self._file.flush()
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError) -> None:
        log.warning("inflight: steps cannot be recorded any more: %s", error.strerror or error)
        self._file = None

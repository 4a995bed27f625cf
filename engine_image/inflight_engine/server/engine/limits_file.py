"""The limits file: live limits for new replicas, a small JSON file that the operator mounts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import msgspec

from inflight_engine.scheduling.limits import Limits

log = logging.getLogger(__name__)

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class _LimitsFile(msgspec.Struct, forbid_unknown_fields=True):
    max_num_seqs: AtLeastOne | None = None
    max_num_batched_tokens: AtLeastOne | None = None
    revision: Annotated[int, msgspec.Meta(ge=0)] = 0


def initial_limits(path: Path | None, capacity: Limits) -> Limits:
    """The limits in the file, at most `capacity`; `capacity` without a readable file.

    A replica that serves with its capacities is better than one that does not start, so a damaged file is a warning.
    """
    if path is None:
        return capacity
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return capacity
    except OSError as error:
        log.warning("limits file %s cannot be read (%s); starting with the capacities", path, error.strerror)
        return capacity
    try:
        return clamped(msgspec.json.decode(content, type=_LimitsFile), capacity)
    except msgspec.DecodeError as error:
        log.warning("limits file %s is malformed (%s); starting with the capacities", path, error)
        return capacity


def clamped(wanted: _LimitsFile, capacity: Limits) -> Limits:
    return Limits(
        max_num_seqs=min(wanted.max_num_seqs or capacity.max_num_seqs, capacity.max_num_seqs),
        max_num_batched_tokens=min(
            wanted.max_num_batched_tokens or capacity.max_num_batched_tokens, capacity.max_num_batched_tokens
        ),
        revision=wanted.revision,
    )

"""The limits file: live limits for new replicas, a small JSON file that the operator mounts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import msgspec

from inflight_settings.limits import Limits, LimitsInForce, PartialLimits

log = logging.getLogger(__name__)

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class _LimitsFile(msgspec.Struct, forbid_unknown_fields=True):
    max_num_seqs: AtLeastOne | None = None
    max_num_batched_tokens: AtLeastOne | None = None
    revision: Annotated[int, msgspec.Meta(ge=0)] = 0


def initial_limits(path: Path | None, capacity: Limits) -> LimitsInForce:
    """The limits in the file, at most `capacity`; `capacity` without a readable file.

    A replica that serves with its capacities is better than one that does not start, so a damaged file is a warning.
    """
    if path is None:
        return LimitsInForce(capacity)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return LimitsInForce(capacity)
    except OSError as error:
        log.warning("limits file %s cannot be read (%s); starting with the capacities", path, error.strerror)
        return LimitsInForce(capacity)
    try:
        file = msgspec.json.decode(content, type=_LimitsFile)
    except msgspec.DecodeError as error:
        log.warning("limits file %s is malformed (%s); starting with the capacities", path, error)
        return LimitsInForce(capacity)
    wanted = PartialLimits(file.max_num_seqs, file.max_num_batched_tokens)
    return LimitsInForce(wanted.over(capacity).at_most(capacity), file.revision)

"""Limits of a server at its start, and changes of them while it runs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import msgspec

from inflight_contract.errors import ApiError, bad_request
from inflight_settings.limits import KNOBS, Limits, LimitsInForce, PartialLimits

log = logging.getLogger(__name__)

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


def changed_limits(
    current: LimitsInForce, capacity: Limits, change: PartialLimits, revision: int | None = None
) -> LimitsInForce:
    """Return the limits after a change. Sent twice, a change with the same revision is harmless.

    Args:
        revision: number of the change; None keeps the one in force.

    Raises:
        ApiError: 400 a value is below 1 or above the start-up capacity, 409 `revision` is older than the one in force.
    """
    if revision is not None and revision < current.revision:
        message = f"revision {revision} is older than revision {current.revision}, which is in force"
        raise ApiError(409, message, "revision", "stale_revision")
    limits = change.over(current.limits)
    for knob in KNOBS:
        value, most = limits.get(knob), capacity.get(knob)
        if not 1 <= value <= most:
            raise bad_request(
                f"{knob} must be between 1 and {most} (the capacity this engine was started with), not {value}", knob
            )
    return LimitsInForce(limits, current.revision if revision is None else revision)


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

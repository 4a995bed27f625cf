"""Rules for changing the two limits while the engine runs."""

from __future__ import annotations

from inflight_settings.limits import KNOBS, Limits, LimitsInForce, PartialLimits


class LimitError(ValueError):
    """A limit below 1 or above its start-up capacity; the message names the field."""


class StaleRevisionError(ValueError):
    """The change is older than the one in force."""


def changed_limits(
    current: LimitsInForce, capacity: Limits, change: PartialLimits, revision: int | None = None
) -> LimitsInForce:
    """The limits after a change. Sent twice, a change with the same revision is harmless.

    Args:
        revision: number of the change; None keeps the one in force.

    Raises:
        LimitError: a value is below 1 or above capacity. Nothing is changed.
        StaleRevisionError: `revision` is smaller than the one in force.
    """
    if revision is not None and revision < current.revision:
        raise StaleRevisionError(f"revision {revision} is older than revision {current.revision}, which is in force")
    limits = change.over(current.limits)
    for knob in KNOBS:
        value, most = limits.get(knob), capacity.get(knob)
        if not 1 <= value <= most:
            raise LimitError(
                f"{knob} must be between 1 and {most} (the capacity this engine was started with), not {value}"
            )
    return LimitsInForce(limits, current.revision if revision is None else revision)

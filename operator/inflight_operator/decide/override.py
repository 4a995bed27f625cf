"""Limits set by hand for a limited time (`spec.tuning.override`).

While an override is in force, tuning is paused and both limits stay constant. At its end, the limits that were in
force before it return, and tuning restarts its measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from inflight_operator.decide.decision import Decision, Reason
from inflight_settings.limits import KNOBS, Limits, PartialLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Override(PartialLimits):
    """The override in the spec. A limit that is None keeps the value that was in force before the override.

    Attributes:
        until: end of the override; from then on it has no effect.
    """

    until: datetime

    @property
    def end(self) -> str:
        """Returns `until` to the second, as the Kubernetes API writes times."""
        try:
            until = self.until.astimezone(UTC)
        except OverflowError:  # in UTC it is outside the years 1 to 9999
            until = self.until.replace(tzinfo=UTC)
        return f"{until:%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, slots=True)
class OverrideDecision:
    """Attributes:
    limits: limits of the service from now on.
    before: the limits to return to at the end; None while no override is in force.
    changes: from the limits that were in force until now.
    """

    limits: Limits
    before: Limits | None
    changes: tuple[Decision, ...] = ()


def decide_override(
    override: Override | None, now: datetime, limits: Limits, before: Limits | None, capacity: Limits
) -> OverrideDecision:
    """Returns the limits from now on: those set by hand while they are in force, else the previous ones.

    Args:
        override: override in the spec; None without one.
        limits: limits in force until now.
        before: `OverrideDecision.before` of the last decision.
        capacity: limits that engines are started with; no limit exceeds them.
    """
    if override is not None and now < override.until:
        kept = limits if before is None else before
        by_hand = override.over(kept).at_most(capacity)
        return OverrideDecision(by_hand, kept, _changes(limits, by_hand, Reason("ByHand", {"until": override.end})))
    if before is None:
        return OverrideDecision(limits, None)
    back = before.at_most(capacity)
    why = Reason("OverrideRemoved") if override is None else Reason("OverrideEnded", {"until": override.end})
    return OverrideDecision(back, None, _changes(limits, back, why))


def _changes(frm: Limits, to: Limits, reason: Reason) -> tuple[Decision, ...]:
    return tuple(
        Decision("Tuning", knob, frm.get(knob), to.get(knob), reason) for knob in KNOBS if frm.get(knob) != to.get(knob)
    )

"""Limits set by hand for a limited time (`spec.tuning.override`).

While an override is in force, tuning is paused and both limits stay constant. At its end, the limits that were in
force before it return, and tuning restarts its measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from inflight_operator.decide.decision import Decision, Reason
from inflight_operator.decide.tuning_types import KNOBS
from inflight_operator.limits import Limits


@dataclass(frozen=True, slots=True)
class Override:
    """The override in the spec.

    Attributes:
        max_num_seqs, max_num_batched_tokens: None keeps the value that was in force before the override.
        until: its end; from then on it has no effect.
    """

    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    until: datetime

    @property
    def end(self) -> str:
        """`until` to the second, as the Kubernetes API writes times."""
        try:
            until = self.until.astimezone(UTC)
        except OverflowError:  # in UTC it is outside the years 1 to 9999
            until = self.until.replace(tzinfo=UTC)
        return f"{until:%Y-%m-%dT%H:%M:%SZ}"

    def of(self, limits: Limits) -> Limits:
        """`limits` with the values that are set."""
        return Limits(
            limits.max_num_seqs if self.max_num_seqs is None else self.max_num_seqs,
            limits.max_num_batched_tokens if self.max_num_batched_tokens is None else self.max_num_batched_tokens,
        )


@dataclass(frozen=True, slots=True)
class OverrideDecision:
    """Attributes:
    limits: of the service from now on.
    before: the limits to return to at the end; None while no override is in force.
    changes: from the limits that were in force until now.
    """

    limits: Limits
    before: Limits | None
    changes: tuple[Decision, ...] = ()


def decide_override(
    asked: Override | None, now: datetime, limits: Limits, before: Limits | None, capacity: Limits
) -> OverrideDecision:
    """Whether limits by hand are in force now, and which.

    Args:
        asked: by the spec; None without an override.
        limits: in force until now.
        before: `OverrideDecision.before` of the last decision.
        capacity: limits that engines are started with; no limit exceeds them.
    """
    if asked is not None and now < asked.until:
        kept = limits if before is None else before
        by_hand = asked.of(kept).at_most(capacity)
        return OverrideDecision(by_hand, kept, _changes(limits, by_hand, Reason("ByHand", {"until": asked.end})))
    if before is None:
        return OverrideDecision(limits, None)
    back = before.at_most(capacity)
    why = Reason("OverrideRemoved") if asked is None else Reason("OverrideEnded", {"until": asked.end})
    return OverrideDecision(back, None, _changes(limits, back, why))


def _changes(frm: Limits, to: Limits, reason: Reason) -> tuple[Decision, ...]:
    return tuple(
        Decision("Tuning", knob, frm.get(knob), to.get(knob), reason) for knob in KNOBS if frm.get(knob) != to.get(knob)
    )

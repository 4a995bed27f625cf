"""Bounds on the speed of scaling, in the terms of `autoscaling/v2` `behavior`: stabilization windows and rate policies.

Source: Kubernetes documentation, "Horizontal Pod Autoscaling", Configurable scaling behavior.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import ge, le
from typing import Literal

from inflight_operator.decide.decision import Reason

SelectPolicy = Literal["Max", "Min", "Disabled"]
Recommendations = tuple[tuple[float, int], ...]
"""(time, replicas), oldest first."""

EVENTS_PER_PERIOD = 100
"""Resolution of changes: number of parts of the longest period. Of changes closer together than a part, two are kept
apart; the others count at the time of the later one."""


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """At most `value` pods, or percent of the replicas at the period's start, in `period` seconds."""

    type: Literal["Pods", "Percent"]
    value: int
    period: float


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """Rules for one direction.

    Attributes:
        stabilization_window: seconds; the most conservative recommendation within it applies.
        policies: rate limits; none means no limit.
        select_policy: policy that applies: that with the largest change, that with the smallest, or no change at all.
    """

    stabilization_window: float
    policies: tuple[ScalingPolicy, ...] = ()
    select_policy: SelectPolicy = "Max"


@dataclass(frozen=True, slots=True)
class Behavior:
    scale_up: ScalingRules
    scale_down: ScalingRules

    @property
    def longest_period(self) -> float:
        """Seconds that rate policies look back at most."""
        rules = (*self.scale_up.policies, *self.scale_down.policies)
        return max((policy.period for policy in rules), default=0.0)


@dataclass(frozen=True, slots=True)
class ScalingHistory:
    """State of earlier decisions; immutable, passed from decision to decision.

    It is bounded by construction: of recommendations only those are kept that can still be the extreme of their window
    (at most one for each number of replicas), of changes at most two for each hundredth of the longest period.

    Attributes:
        lowest: recommendations that a scale-up window may still be held by: each lower than all that came later.
        highest: the same for the scale-down window: each higher than all that came later.
        events: (time, change in replicas) that were carried out, oldest first.
        complete_since: time since which every ordered replica has been ready; infinity while some are starting.
    """

    lowest: Recommendations = ()
    highest: Recommendations = ()
    events: tuple[tuple[float, int], ...] = ()
    complete_since: float = math.inf

    def at(self, now: float, current: int, *, starting: int) -> ScalingHistory:
        """This history brought to `now`. An empty one (a new or restarted operator) begins with a recommendation of the
        current replicas, so that a restart waits for the scale-down window."""
        complete = math.inf if starting else min(self.complete_since, now)
        begun = ((now, current),)
        return replace(self, lowest=self.lowest or begun, highest=self.highest or begun, complete_since=complete)

    def change_since(self, since: float) -> int:
        """Net change in replicas carried out after `since`."""
        return sum(change for time, change in self.events if time > since)


@dataclass(frozen=True, slots=True)
class Bounded:
    """A number of replicas after a rule, and the part that the rule held back (None if nothing)."""

    replicas: int
    held: Reason | None


def stabilized(wanted: int, current: int, behavior: Behavior, history: ScalingHistory, now: float) -> Bounded:
    """`wanted`, held by the smallest recommendation of the scale-up window and the largest of the scale-down window."""
    up, down = behavior.scale_up.stabilization_window, behavior.scale_down.stabilization_window
    lowest = [one for one in history.lowest if now - one[0] < up]
    highest = [one for one in history.highest if now - one[0] < down]
    most = min([wanted, *(replicas for _, replicas in lowest)])
    least = max([wanted, *(replicas for _, replicas in highest)])
    to = most if current < most else least if current > least else current
    if to < wanted:
        against = max((time for time, replicas in lowest if replicas < wanted), default=now)
        return Bounded(to, _window("ScaleUpWindow", against + up - now))
    if to > wanted:
        against = max((time for time, replicas in highest if replicas > wanted), default=now)
        return Bounded(to, _window("ScaleDownWindow", against + down - now))
    return Bounded(to, None)


def _window(code: str, left: float) -> Reason:
    return Reason(code, {"seconds": math.ceil(left)})


def rate_limited(wanted: int, current: int, behavior: Behavior, history: ScalingHistory, now: float) -> Bounded:
    """`wanted` within what the policies of its direction still allow in their periods."""
    if wanted == current:
        return Bounded(current, None)
    up = wanted > current
    rules = behavior.scale_up if up else behavior.scale_down
    direction = "scaleUp" if up else "scaleDown"
    if rules.select_policy == "Disabled":
        return Bounded(current, Reason("ScalingDisabled", {"direction": direction}))
    if not rules.policies:
        return Bounded(wanted, None)
    limits = [_limit(policy, current, history, now, up=up) for policy in rules.policies]
    most_change = rules.select_policy == "Max"
    limit = max(limits) if up == most_change else min(limits)
    # Never past the present number in the other direction: a used-up policy stops a change, it does not undo one.
    limit = max(limit, current) if up else min(limit, current)
    if (up and limit >= wanted) or (not up and limit <= wanted):
        return Bounded(wanted, None)
    return Bounded(limit, Reason("RateLimited", {"wanted": wanted, "direction": direction, "allowed": limit}))


def _limit(policy: ScalingPolicy, current: int, history: ScalingHistory, now: float, *, up: bool) -> int:
    start = current - history.change_since(now - policy.period)
    if policy.type == "Pods":
        return start + policy.value if up else start - policy.value
    share = policy.value / 100
    return math.ceil(start * (1 + share)) if up else math.floor(start * (1 - share))


def recorded(
    history: ScalingHistory, now: float, *, wanted: int, before: int, after: int, behavior: Behavior
) -> ScalingHistory:
    """`history` with this decision, without entries older than all windows and policies."""
    return replace(
        history,
        lowest=_pushed(history.lowest, now, wanted, behavior.scale_up.stabilization_window, ge),
        highest=_pushed(history.highest, now, wanted, behavior.scale_down.stabilization_window, le),
        events=_with_event(history.events, now, after - before, behavior.longest_period),
    )


def _pushed(
    kept: Recommendations, now: float, wanted: int, window: float, beaten: Callable[[int, int], bool]
) -> Recommendations:
    """A monotonic queue: whatever a later recommendation beats can never be the extreme of a window again."""
    return (*(one for one in kept if now - one[0] < window and not beaten(one[1], wanted)), (now, wanted))


def _with_event(
    events: tuple[tuple[float, int], ...], now: float, change: int, period: float
) -> tuple[tuple[float, int], ...]:
    kept = tuple(one for one in events if one[0] > now - period)
    if not change or not period:
        return kept
    if len(kept) >= 2 and now - kept[-2][0] < period / EVENTS_PER_PERIOD:
        return (*kept[:-1], (now, kept[-1][1] + change))
    return (*kept, (now, change))

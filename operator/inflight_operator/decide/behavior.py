"""Bounds on the speed of scaling, in the terms of `autoscaling/v2` `behavior`: stabilization windows and rate policies.

Source: Kubernetes documentation, "Horizontal Pod Autoscaling", Configurable scaling behavior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

SelectPolicy = Literal["Max", "Min", "Disabled"]


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
        stabilization_window: seconds; the most cautious recommendation within it counts.
        policies: rate limits; none means no limit.
        select_policy: which policy counts: the one that allows the most change, the least, or no change at all.
    """

    stabilization_window: float
    policies: tuple[ScalingPolicy, ...] = ()
    select_policy: SelectPolicy = "Max"


@dataclass(frozen=True, slots=True)
class Behavior:
    scale_up: ScalingRules = ScalingRules(stabilization_window=0.0)
    scale_down: ScalingRules = ScalingRules(stabilization_window=300.0)


@dataclass(frozen=True, slots=True)
class ScalingHistory:
    """What earlier decisions left behind; immutable, handed from decision to decision.

    Attributes:
        recommendations: (time, replicas wanted before stabilization), oldest first.
        events: (time, change in replicas) that were carried out, oldest first.
        complete_since: time since which every ordered replica has been ready; infinity while some are starting.
    """

    recommendations: tuple[tuple[float, int], ...] = ()
    events: tuple[tuple[float, int], ...] = ()
    complete_since: float = math.inf

    def at(self, now: float, current: int, *, starting: int) -> ScalingHistory:
        """This history brought to `now`. An empty one (a new or restarted operator) begins with a recommendation of
        what is there, so that a restart waits out the scale-down window."""
        complete = math.inf if starting else min(self.complete_since, now)
        recommendations = self.recommendations or ((now, current),)
        return replace(self, recommendations=recommendations, complete_since=complete)

    def with_event(self, now: float, change: int) -> ScalingHistory:
        return replace(self, events=(*self.events, (now, change)))

    def change_since(self, since: float) -> int:
        """Net change in replicas carried out after `since`."""
        return sum(change for time, change in self.events if time > since)


@dataclass(frozen=True, slots=True)
class Bounded:
    """A number of replicas after a rule, and what the rule held back (empty when nothing)."""

    replicas: int
    why: str


def stabilized(wanted: int, current: int, behavior: Behavior, history: ScalingHistory, now: float) -> Bounded:
    """`wanted`, held by the smallest recommendation of the scale-up window and the largest of the scale-down window."""
    up = [one for one in history.recommendations if now - one[0] < behavior.scale_up.stabilization_window]
    down = [one for one in history.recommendations if now - one[0] < behavior.scale_down.stabilization_window]
    most = min([wanted, *(replicas for _, replicas in up)])
    least = max([wanted, *(replicas for _, replicas in down)])
    if current < most:
        return Bounded(most, "" if most == wanted else _held("scale-up", up, wanted, behavior.scale_up, now))
    if current > least:
        return Bounded(least, "" if least == wanted else _held("scale-down", down, wanted, behavior.scale_down, now))
    if wanted > current:
        return Bounded(current, _held("scale-up", up, wanted, behavior.scale_up, now))
    if wanted < current:
        return Bounded(current, _held("scale-down", down, wanted, behavior.scale_down, now))
    return Bounded(current, "")


def _held(
    direction: Literal["scale-up", "scale-down"],
    within: list[tuple[float, int]],
    wanted: int,
    rules: ScalingRules,
    now: float,
) -> str:
    against = [
        time for time, replicas in within if (replicas < wanted if direction == "scale-up" else replicas > wanted)
    ]
    left = max(against, default=now) + rules.stabilization_window - now
    return f"held by the {direction} window for {math.ceil(left)} s more"


def rate_limited(wanted: int, current: int, behavior: Behavior, history: ScalingHistory, now: float) -> Bounded:
    """`wanted` within what the policies of its direction still allow in their periods."""
    if wanted == current:
        return Bounded(current, "")
    up = wanted > current
    rules = behavior.scale_up if up else behavior.scale_down
    direction = "scaleUp" if up else "scaleDown"
    if rules.select_policy == "Disabled":
        return Bounded(current, f"behavior.{direction}.selectPolicy is Disabled")
    if not rules.policies:
        return Bounded(wanted, "")
    limits = [_limit(policy, current, history, now, up=up) for policy in rules.policies]
    most_change = rules.select_policy == "Max"
    limit = max(limits) if up == most_change else min(limits)
    # Never past the present number in the other direction: a used-up policy stops a change, it does not undo one.
    limit = max(limit, current) if up else min(limit, current)
    if (up and limit >= wanted) or (not up and limit <= wanted):
        return Bounded(wanted, "")
    return Bounded(limit, f"{wanted} are wanted, behavior.{direction}.policies allow {limit} now")


def _limit(policy: ScalingPolicy, current: int, history: ScalingHistory, now: float, *, up: bool) -> int:
    start = current - history.change_since(now - policy.period)
    if policy.type == "Pods":
        return start + policy.value if up else start - policy.value
    share = policy.value / 100
    return math.ceil(start * (1 + share)) if up else math.floor(start * (1 - share))


def recorded(
    history: ScalingHistory, now: float, *, wanted: int, before: int, after: int, behavior: Behavior
) -> ScalingHistory:
    """`history` with this decision, without what no window or policy looks back to any more."""
    window = max(behavior.scale_up.stabilization_window, behavior.scale_down.stabilization_window)
    periods = [policy.period for rules in (behavior.scale_up, behavior.scale_down) for policy in rules.policies]
    oldest_event = now - max(periods, default=0.0)
    kept = tuple(one for one in history.recommendations if now - one[0] < window)
    events = tuple(one for one in history.events if one[0] > oldest_event)
    result = replace(history, recommendations=(*_compact(kept), (now, wanted)), events=events)
    return result if after == before else result.with_event(now, after - before)


def _compact(recommendations: tuple[tuple[float, int], ...]) -> tuple[tuple[float, int], ...]:
    """Of runs with the same number only the first and the last matter: a window of hours stays small."""
    kept: list[tuple[float, int]] = []
    for one in recommendations:
        if len(kept) >= 2 and kept[-1][1] == one[1] == kept[-2][1]:
            kept[-1] = one
        else:
            kept.append(one)
    return tuple(kept)

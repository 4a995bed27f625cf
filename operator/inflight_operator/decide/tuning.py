"""The two live limits of a service's engines: one bounded step at a time, each measured before the next.

Additive increase, multiplicative decrease, within the bounds of `spec.tuning` and the engines' capacities. After a
change the measurements start anew, so a decision only ever sees the setting in force. A change that made things worse
is taken back, and its direction is left alone for a while.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from inflight_operator.decide.tuning_rules import propose
from inflight_operator.decide.tuning_types import (
    Block,
    Change,
    Knob,
    Limits,
    Slo,
    Trial,
    TuningBounds,
    TuningPolicy,
    TuningState,
    TuningView,
    seconds_text,
)


class TuningMode(StrEnum):
    AUTO = "Auto"
    RECOMMEND = "Recommend"
    OFF = "Off"


@dataclass(frozen=True, slots=True)
class TuningDecision:
    """Attributes:
    limits: what is to be in force now.
    change: the one change made (Auto) or advised (Recommend); None when nothing changes.
    code: CamelCase reason for a condition.
    reason: one sentence.
    state: to be given to the next decision.
    """

    limits: Limits
    change: Change | None
    code: str
    reason: str
    state: TuningState


def decide_tuning(
    mode: TuningMode,
    view: TuningView,
    limits: Limits,
    bounds: TuningBounds,
    slo: Slo,
    state: TuningState,
    policy: TuningPolicy,
) -> TuningDecision:
    """The limits to be in force now, with the reason; pass the returned state to the next call.

    In mode Off that is the upper bound, which the caller makes the engines' capacity.
    """
    if mode is TuningMode.OFF:
        state = TuningState(window_start=view.time)
        return TuningDecision(bounds.max, None, "Off", "tuning.mode is Off: engines run at their capacities", state)
    bounded = bounds.clamp(limits)
    if bounded != limits:
        return _into_bounds(limits, bounded, mode, view.time)
    if state.trial is not None and limits.get(state.trial.change.knob) != state.trial.change.to:
        state = replace(state, trial=None)  # set by someone else meanwhile: there is nothing to take back
    if _still_draining(view, limits, state, policy):
        why = f"{view.running_now} requests still run, {limits.max_num_seqs} is the limit"
        state = replace(state, window_start=view.time)
        return _unchanged(limits, "Draining", f"waiting for max_num_seqs to take hold: {why}", state)
    if view.span < policy.window:
        wait = math.ceil(policy.window - view.span)
        return _unchanged(limits, "Measuring", f"measuring the limits in force for {wait} s more", state)
    if not view.has_traffic:
        # Nothing to judge a trial by: it stays, and the next traffic is measured afresh.
        idle = replace(state, trial=None, window_start=view.time)
        return _unchanged(limits, "NoTraffic", "no traffic: limits stay as they are", idle)

    state = state.without_expired(view.time)
    if state.trial is not None and state.trial.before.pods == view.pods:
        verdict = judge(state.trial, view, slo, policy)
        if verdict is not None:
            return _take_back(limits, bounds, state, state.trial, verdict, policy, view.time)
        if _out_of_reach(state.trial, view, slo, policy):
            # The step helped and stays; further ones would only cost throughput.
            rest = Block("max_num_seqs", up=False, until=view.time + policy.out_of_reach_cool_down)
            state = replace(state, blocks=(*state.blocks, rest))
    # Judged, or measured while replicas came or went, which changes more than any limit: either way it stays.
    state = replace(state, trial=None)

    change = propose(view, limits, bounds, slo, policy, state)
    restarted = replace(state, window_start=view.time)
    if change is None:
        return _unchanged(limits, "InDeadBand", _holds(view, slo), restarted)
    if mode is TuningMode.RECOMMEND:
        return TuningDecision(limits, change, "Recommending", f"would change {change.text}", restarted)
    trial = Trial(change=change, before=view, started=view.time)
    return TuningDecision(change.applied_to(limits), change, change.code, change.text, replace(restarted, trial=trial))


def judge(trial: Trial, view: TuningView, slo: Slo, policy: TuningPolicy) -> str | None:
    """Why the change on trial made things worse; None when it stays.

    A step up is worse when it broke the TPOT target that held before, or brought preemptions. A step down is worse when
    it cost throughput while requests waited and decoding got no faster for it.
    """
    return _worse_up(trial, view, slo, policy) if trial.change.up else _worse_down(trial, view, policy)


def _worse_up(trial: Trial, view: TuningView, slo: Slo, policy: TuningPolicy) -> str | None:
    before, pace, target = trial.before, view.pace, slo.tpot_p95
    if view.preemptions_per_min > before.preemptions_per_min + policy.preemptions_per_min:
        return f"{view.preemptions_per_min:.0f} preemptions/min since"
    if target is None or pace is None or pace <= target * (1 + policy.dead_band):
        return None
    if before.pace is not None and before.pace > target * (1 + policy.dead_band):
        return None
    return f"{seconds_text(pace)} a token since, over target {seconds_text(target)}"


def _worse_down(trial: Trial, view: TuningView, policy: TuningPolicy) -> str | None:
    before = trial.before
    if before.waiting < 1 or view.waiting < 1 or view.preemptions_per_min < before.preemptions_per_min:
        return None
    if before.pace is None or view.pace is None or view.pace < before.pace * (1 - policy.dead_band / 2):
        return None
    if view.tokens_per_s >= before.tokens_per_s * (1 - policy.throughput_loss):
        return None
    was, now = before.tokens_per_s, view.tokens_per_s
    return f"{was:.0f} -> {now:.0f} tokens/s since, and {seconds_text(view.pace)} a token is no better"


def _out_of_reach(trial: Trial, view: TuningView, slo: Slo, policy: TuningPolicy) -> bool:
    """Whether a step down showed that even a request alone would miss the target. Time per token against running
    requests is close to a line; two settings give it, and with it the time of one request."""
    before, target = trial.before, slo.tpot_p95
    if trial.change.up or trial.change.code != "TpotOverTarget" or trial.change.knob != "max_num_seqs":
        return False
    if target is None or before.pace is None or view.pace is None or view.pace <= target * (1 + policy.dead_band):
        return False
    if view.running < 1 or view.running > before.running * 0.9:
        return False
    slope = max(0.0, (before.pace - view.pace) / (before.running - view.running))
    alone = view.pace - slope * (view.running - 1)
    return alone > target


def _still_draining(view: TuningView, limits: Limits, state: TuningState, policy: TuningPolicy) -> bool:
    """A lowered slot limit takes hold as running requests finish; what is measured before that is the old setting.
    Bounded, so that requests without end cannot stop the tuning."""
    if state.trial is None or state.trial.change.knob != "max_num_seqs":
        return False
    patience = policy.window * policy.drain_windows
    return view.running_now > limits.max_num_seqs and view.time - state.trial.started < patience


def _take_back(
    limits: Limits,
    bounds: TuningBounds,
    state: TuningState,
    trial: Trial,
    why: str,
    policy: TuningPolicy,
    now: float,
) -> TuningDecision:
    made = trial.change
    rest = Block(made.knob, up=made.up, until=now + policy.cool_down)
    state = TuningState(window_start=now, blocks=(*state.blocks, rest))
    to = bounds.clamp(made.before(limits)).get(made.knob)
    if to == made.to:
        return _unchanged(limits, "InDeadBand", f"{why}, but the bounds allow no way back", state)
    text = f"{made.knob} {made.to} -> {to}: taken back, {why}"
    back = Change(made.knob, made.to, to, "TakenBack", text)
    return TuningDecision(back.applied_to(limits), back, back.code, text, state)


def _into_bounds(limits: Limits, bounded: Limits, mode: TuningMode, now: float) -> TuningDecision:
    knob: Knob = "max_num_seqs" if limits.max_num_seqs != bounded.max_num_seqs else "max_num_batched_tokens"
    frm, to = limits.get(knob), bounded.get(knob)
    change = Change(
        knob, frm, to, "IntoBounds", f"{knob} {frm} -> {to}: the bounds of spec.tuning or the capacity end there"
    )
    state = TuningState(window_start=now)
    if mode is TuningMode.RECOMMEND:
        return TuningDecision(limits, change, "Recommending", f"would change {change.text}", state)
    return TuningDecision(change.applied_to(limits), change, change.code, change.text, state)


def _unchanged(limits: Limits, code: str, reason: str, state: TuningState) -> TuningDecision:
    return TuningDecision(limits, None, code, reason, state)


def _holds(view: TuningView, slo: Slo) -> str:
    if view.tpot is None or slo.tpot_p95 is None:
        return f"{view.running:.0f} requests run, {view.waiting:.0f} wait: no limit is in the way"
    return f"p95 TPOT {seconds_text(view.tpot)}, target {seconds_text(slo.tpot_p95)}: no step would help"

"""The two live limits of a service's engines: one bounded step at a time, each measured before the next.

Additive increase, multiplicative decrease, within the bounds of `spec.tuning` and the engines' capacities. After a
change the measurements start anew, so a decision sees the setting in force, and at most one scrape interval of the
one before. A change that made things worse
is taken back, and its direction is left alone for a while.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from inflight_operator.decide.decision import Decision, Reason
from inflight_operator.decide.tuning_rules import propose
from inflight_operator.decide.tuning_types import Block, Slo, Step, Trial, TuningPolicy, TuningState, TuningView
from inflight_operator.limits import Knob, Limits, LimitsBounds


class TuningMode(StrEnum):
    AUTO = "Auto"
    RECOMMEND = "Recommend"
    OFF = "Off"


@dataclass(frozen=True, slots=True)
class TuningDecision:
    """Attributes:
    limits: what is to be in force now.
    change: the one change made (Auto) or advised (Recommend); None when nothing changes.
    reason: of the change, or why nothing changes; its code is the reason of a condition.
    state: to be given to the next decision.
    """

    limits: Limits
    change: Decision | None
    reason: Reason
    state: TuningState


def decide_tuning(
    mode: TuningMode,
    view: TuningView,
    limits: Limits,
    bounds: LimitsBounds,
    slo: Slo,
    state: TuningState,
    policy: TuningPolicy,
) -> TuningDecision:
    """The limits to be in force now, with the reason; pass the returned state to the next call.

    In mode Off that is the upper bound, which the caller makes the engines' capacity.
    """
    if mode is TuningMode.OFF:
        state = TuningState(window_start=view.time)
        return _unchanged(bounds.high, Reason("Off"), state)
    bounded = bounds.clamp(limits)
    if bounded != limits:
        return _into_bounds(limits, bounded, mode, view.time)
    if state.trial is not None and limits.get(state.trial.step.knob) != state.trial.step.to:
        state = replace(state, trial=None)  # set by someone else meanwhile: there is nothing to take back
    if _still_draining(view, limits, state, policy):
        why = Reason("Draining", {"running": view.running_now, "limit": limits.max_num_seqs})
        return _unchanged(limits, why, replace(state, window_start=view.time))
    # What is measured may begin with the last scrape before the window: the window itself has to be over as well.
    measured = min(view.span, view.time - state.window_start)
    if measured < policy.window:
        return _unchanged(limits, Reason("Measuring", {"seconds": math.ceil(policy.window - measured)}), state)
    if not view.has_traffic:
        # Nothing to judge a trial by: it stays, and the next traffic is measured afresh.
        idle = replace(state, trial=None, window_start=view.time)
        return _unchanged(limits, Reason("NoTraffic"), idle)

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

    step = propose(view, limits, bounds, slo, policy, state)
    restarted = replace(state, window_start=view.time)
    if step is None:
        return _unchanged(limits, _holds(view, slo), restarted)
    if mode is TuningMode.RECOMMEND:
        return _advised(limits, step, restarted)
    return _made(limits, step, replace(restarted, trial=Trial(step=step, before=view, started=view.time)))


def judge(trial: Trial, view: TuningView, slo: Slo, policy: TuningPolicy) -> Reason | None:
    """Why the step on trial made things worse; None when it stays.

    A step up is worse when it broke the TPOT target that held before, or brought preemptions. A step down is worse when
    it cost throughput while requests waited and decoding got no faster for it.
    """
    return _worse_up(trial, view, slo, policy) if trial.step.up else _worse_down(trial, view, policy)


def _worse_up(trial: Trial, view: TuningView, slo: Slo, policy: TuningPolicy) -> Reason | None:
    before, pace, target = trial.before, view.pace, slo.tpot_p95
    if view.preemptions_per_min > before.preemptions_per_min + policy.preemptions_per_min:
        return Reason("TakenBack", {"preemptions": view.preemptions_per_min})
    if target is None or pace is None or pace <= target * (1 + policy.dead_band):
        return None
    if before.pace is not None and before.pace > target * (1 + policy.dead_band):
        return None
    return Reason("TakenBack", {"pace": pace, "target": target})


def _worse_down(trial: Trial, view: TuningView, policy: TuningPolicy) -> Reason | None:
    before = trial.before
    if before.waiting < 1 or view.waiting < 1 or view.preemptions_per_min < before.preemptions_per_min:
        return None
    if before.pace is None or view.pace is None or view.pace < before.pace * (1 - policy.dead_band / 2):
        return None
    if view.tokens_per_s >= before.tokens_per_s * (1 - policy.throughput_loss):
        return None
    numbers = {"tokens_before": before.tokens_per_s, "tokens_now": view.tokens_per_s, "pace": view.pace}
    return Reason("TakenBack", numbers)


def _out_of_reach(trial: Trial, view: TuningView, slo: Slo, policy: TuningPolicy) -> bool:
    """Whether a step down showed that even a request alone would miss the target. Time per token against running
    requests is close to a line; two settings give it, and with it the time of one request."""
    before, target = trial.before, slo.tpot_p95
    if trial.step.up or trial.step.reason.code != "TpotOverTarget" or trial.step.knob != "max_num_seqs":
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
    if state.trial is None or state.trial.step.knob != "max_num_seqs":
        return False
    patience = policy.window * policy.drain_windows
    return view.running_now > limits.max_num_seqs and view.time - state.trial.started < patience


def _take_back(
    limits: Limits,
    bounds: LimitsBounds,
    state: TuningState,
    trial: Trial,
    why: Reason,
    policy: TuningPolicy,
    now: float,
) -> TuningDecision:
    made = trial.step
    rest = Block(made.knob, up=made.up, until=now + policy.cool_down)
    state = TuningState(window_start=now, blocks=(*state.blocks, rest))
    to = bounds.clamp(limits.with_(made.knob, made.frm)).get(made.knob)
    if to == made.to:
        return _unchanged(limits, Reason("NoWayBack", why.numbers), state)
    return _made(limits, Step(made.knob, made.to, to, why), state)


def _into_bounds(limits: Limits, bounded: Limits, mode: TuningMode, now: float) -> TuningDecision:
    knob: Knob = "max_num_seqs" if limits.max_num_seqs != bounded.max_num_seqs else "max_num_batched_tokens"
    step = Step(knob, limits.get(knob), bounded.get(knob), Reason("IntoBounds"))
    state = TuningState(window_start=now)
    return _advised(limits, step, state) if mode is TuningMode.RECOMMEND else _made(limits, step, state)


def _made(limits: Limits, step: Step, state: TuningState) -> TuningDecision:
    return TuningDecision(step.applied_to(limits), step.decision(applied=True), step.reason, state)


def _advised(limits: Limits, step: Step, state: TuningState) -> TuningDecision:
    would = Reason("Recommending", {"knob": step.knob, "from": step.frm, "to": step.to}, held=step.reason)
    return TuningDecision(limits, step.decision(applied=False), would, state)


def _unchanged(limits: Limits, reason: Reason, state: TuningState) -> TuningDecision:
    return TuningDecision(limits, None, reason, state)


def _holds(view: TuningView, slo: Slo) -> Reason:
    if view.tpot is None or slo.tpot_p95 is None:
        return Reason("InDeadBand", {"running": view.running, "waiting": view.waiting})
    return Reason("InDeadBand", {"tpot": view.tpot, "tpot_target": slo.tpot_p95})

"""Tuning of the two live limits: from the measured cost of steps if engines report it, else by rules.

A change restarts the measurements, so a decision sees the limits in force, and at most one scrape interval of the
previous ones. Every change is measured, and reverted if service quality dropped; reverted limits are remembered.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum

from inflight_operator.decide.decision import Reason
from inflight_operator.decide.tuning.model import (
    corrected_move,
    early_move,
    end_canary,
    judge_move,
    move_by_model,
    proves_wrong,
)
from inflight_operator.decide.tuning.rules import step_by_rules, still_draining
from inflight_operator.decide.tuning.types import (
    Slo,
    Step,
    TuningDecision,
    TuningModel,
    TuningPolicy,
    TuningState,
    TuningView,
)
from inflight_settings.limits import Knob, Limits, LimitsBounds


class TuningMode(StrEnum):
    AUTO = "Auto"
    RECOMMEND = "Recommend"
    OFF = "Off"


def decide_tuning(
    mode: TuningMode,
    view: TuningView,
    limits: Limits,
    bounds: LimitsBounds,
    slo: Slo,
    model: TuningModel | None,
    state: TuningState,
    policy: TuningPolicy,
) -> TuningDecision:
    """Returns the limits to be in force now, with the reason; pass the returned state to the next call.

    In mode Off the limits are the upper bound, which the caller sets to the engines' capacity.

    Args:
        model: reliable cost model; None: rules decide.
    """
    if mode is TuningMode.OFF:
        return TuningDecision(bounds.high, (), Reason("Off"), TuningState(window_start=view.time))
    bounded, advise = bounds.clamp(limits), mode is TuningMode.RECOMMEND
    if bounded != limits and not advise:
        return _into_bounds(limits, bounded).made(limits, TuningState(view.time).corrected_as(state))
    state = _still_true(limits, state)
    canary = state.canary
    if canary is not None and (mode is not TuningMode.AUTO or bounds.clamp(canary.limits) != canary.limits):
        return end_canary(limits, state, view.time)
    if advise:
        state = replace(state, trial=None, move=None)  # limits in force stay, also if the mode changed
    if canary is None and still_draining(view, limits, state, policy):
        why = Reason("Draining", {"running": view.running_now, "limit": limits.max_num_seqs})
        return TuningDecision(limits, (), why, replace(state, window_start=view.time))
    # Measurements may begin with the last scrape before the window: the window itself must be over as well.
    measured = min(view.span, view.time - state.window_start)
    if measured < policy.window:
        if state.move is not None and canary is not None and view.time - state.move.started > 2 * policy.patience:
            return end_canary(limits, state, view.time)
        early = None
        if model is not None and not advise:
            begin = early_move if state.move is None else corrected_move
            early = begin(view, limits, bounds, slo, model, state, policy)
        left = Reason("Measuring", {"seconds": math.ceil(policy.window - measured)})
        return early or TuningDecision(limits, (), left, state)
    if not view.has_traffic:
        # Nothing to judge a trial by: its limits stay, and measurements restart with the next traffic.
        if canary is not None:
            return end_canary(limits, state, view.time)
        idle = replace(state, trial=None, move=None, window_start=view.time)
        return TuningDecision(limits, (), Reason("NoTraffic"), idle)
    state = state.without_expired(view.time)
    wrong = model is not None and canary is None and proves_wrong(view, limits, bounds, slo, model, state, policy)
    if state.move is not None and not wrong:
        return judge_move(view, limits, bounds, state.move, state, policy)
    if model is not None:
        state = replace(state, trial=None, move=None)
        return move_by_model(view, limits, bounds, slo, model, state, policy, advise=advise)
    state = replace(state, modelled=None)
    if bounded != limits:
        return _into_bounds(limits, bounded).advised(limits, replace(state, window_start=view.time))
    return step_by_rules(view, limits, bounds, slo, state, policy, advise=advise)


def _still_true(limits: Limits, state: TuningState) -> TuningState:
    """Drops trials whose limits were replaced in the meantime: there is nothing to revert."""
    trial, move = state.trial, state.move
    if trial is not None and limits.get(trial.step.knob) != trial.step.to:
        state = replace(state, trial=None)
    if move is not None and move.canary is None and limits != move.to:
        state = replace(state, move=None)
    return state


def _into_bounds(limits: Limits, bounded: Limits) -> Step:
    knob: Knob = "max_num_seqs" if limits.max_num_seqs != bounded.max_num_seqs else "max_num_batched_tokens"
    return Step(knob, limits.get(knob), bounded.get(knob), Reason("IntoBounds"))

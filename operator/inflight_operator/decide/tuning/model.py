"""Limits by the measured cost of steps: the model proposes limits, measurements accept or revert them.

If two or more pods accept limits and most requests meet their targets, one pod is the canary and is compared with the
others over the same seconds. Else all pods change at once, and the previous measurements are the comparison. Limits
with worse service quality are reverted, and the next attempt lies in the middle between them and the last good ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from inflight_cost.capacity import Margins, Targets, full_step_seconds
from inflight_cost.limits import best_limits, longest_step, saturated_rate, worth
from inflight_operator.decide.decision import Decision, Number, Reason
from inflight_operator.decide.tuning.types import (
    Bracket,
    Canary,
    Move,
    Quality,
    Slo,
    TuningDecision,
    TuningModel,
    TuningPolicy,
    TuningState,
    TuningView,
)
from inflight_settings.limits import KNOBS, Limits, LimitsBounds

CLOSED = 1.2
"""Good and bad limits within this ratio of each other have nothing worth trying between them."""

SAME_LOAD = 1.15
"""Load that grew by more than this ratio explains why fewer requests keep their targets."""

TIGHTEST, LEAST_MEMORY = 0.5, 0.4
"""Smallest factors by which measurements correct the TPOT target and the KV cache of the model."""


def move_by_model(
    view: TuningView,
    limits: Limits,
    bounds: LimitsBounds,
    slo: Slo,
    model: TuningModel,
    state: TuningState,
    policy: TuningPolicy,
    *,
    advise: bool,
) -> TuningDecision:
    """Returns the next limits if no move is being measured, or if its measurements correct the model."""
    state = replace(_corrected(view, limits, slo, model, state, policy), window_start=view.time)
    targets, margins = _targets(slo, model, state), _margins(state)
    wanted = modelled_limits(bounds, slo, model, state)
    state = replace(state, modelled=wanted)
    if state.bracket is not None and _differs(state.bracket.wanted, wanted):
        state = replace(state, bracket=None)
    goal = wanted if state.bracket is None else _middle(state.bracket.good, state.bracket.bad)
    if model.error > policy.sure_error and state.bracket is None:
        goal = _halfway(limits, wanted)
    goal = bounds.clamp(goal)

    def value(pair: Limits) -> float:
        return worth(model.replica, model.workload, targets, pair, margins)

    reason = _by_model(model, slo, limits, goal)
    closed = state.bracket is not None and not _differs(state.bracket.good, state.bracket.bad)
    begins = state.episode is None or view.time - state.episode > policy.episode
    effect = policy.effect if state.episode is None or not begins else policy.settled_effect
    # Requests have become larger than the limits in force assume: no gain, and targets at risk.
    breaks = slo.tpot_p95 is not None and _outgrown(model, limits, wanted, slo.tpot_p95)
    if breaks:
        effect = 0.0
    outside = bounds.clamp(limits) != limits  # only where tuning may not change them
    if closed or goal == limits or not (outside or value(wanted) > value(limits) * (1 + effect)):
        numbers = _by_model(model, slo, limits, limits).numbers
        held = Reason("BracketClosed", numbers) if closed else Reason("AsModelled", numbers)
        return TuningDecision(limits, (), held, state)
    if advise:
        return TuningDecision(
            limits, _changes(limits, goal, reason, applied=False), _advice(limits, goal, reason), state
        )
    canary = None if breaks else _canary(view, goal, policy)
    move = Move(limits, goal, wanted, view.quality, view.pods, view.time, canary, reason)
    episode = view.time if begins else state.episode
    state = replace(state, move=move, episode=episode, window_start=view.time + _settling(view, model, policy))
    if canary is None:
        return TuningDecision(goal, _changes(limits, goal, reason), reason, state)
    first = Reason("Canary", {"pod": canary.name}, held=reason)
    return TuningDecision(limits, _changes(limits, goal, first), first, state)


def modelled_limits(bounds: LimitsBounds, slo: Slo, model: TuningModel, state: TuningState) -> Limits:
    """The limits that the cost model finds best within `bounds`, with the corrections from measurements."""
    return _best_limits(model.replica, model.workload, _targets(slo, model, state), bounds, _margins(state))


_best_limits = lru_cache(maxsize=4096)(best_limits)
"""Models stay as they are for many rounds; see `DemandHistory`."""


def early_move(
    view: TuningView,
    limits: Limits,
    bounds: LimitsBounds,
    slo: Slo,
    model: TuningModel,
    state: TuningState,
    policy: TuningPolicy,
) -> TuningDecision | None:
    """Returns the first move of a service if its limits are so far from the model's that no whole window is needed to
    see it; None if they are not, or if there is no move. A model of few steps is trusted with less of the target."""
    if state.episode is not None:
        return None
    cautious = replace(state, tighten=min(state.tighten, policy.early))
    targets, margins = _targets(slo, model, cautious), _margins(cautious)

    def value(pair: Limits) -> float:
        return worth(model.replica, model.workload, targets, pair, margins)

    if value(modelled_limits(bounds, slo, model, cautious)) <= value(limits) * policy.obvious:
        return None
    arrived = round(view.quality.load * view.pods * view.span)
    if view.quality.evidence < policy.early_evidence or arrived < policy.evidence:
        return None
    decision = move_by_model(view, limits, bounds, slo, model, cautious, policy, advise=False)
    if decision.state.move is None:
        return None
    return replace(decision, state=decision.state.corrected_as(state))


def corrected_move(
    view: TuningView,
    limits: Limits,
    bounds: LimitsBounds,
    slo: Slo,
    model: TuningModel,
    state: TuningState,
    policy: TuningPolicy,
) -> TuningDecision | None:
    """Returns smaller limits in place of a move that is being measured on all pods, if the model has changed since, and
    says now that full steps clearly miss the TPOT target: a first move extrapolates from small steps, and needs no
    whole window to be corrected. What was before that move remains the comparison. None: it does not say so, or too
    few requests were seen."""
    move, tpot = state.move, slo.tpot_p95
    if move is None or move.canary is not None or tpot is None or view.quality.evidence < policy.evidence:
        return None
    wanted = modelled_limits(bounds, slo, model, state)
    clear = _outgrown(model, limits, wanted, tpot * (1 + policy.dead_band))
    if not (clear and _differs(move.wanted, wanted) and _smaller(limits, wanted)):
        return None
    decision = move_by_model(view, limits, bounds, slo, model, replace(state, move=None), policy, advise=False)
    if decision.state.move is None:
        return None
    again = replace(decision.state.move, frm=move.frm, before=move.before, pods=move.pods)
    return replace(decision, state=replace(decision.state, move=again))


def _outgrown(model: TuningModel, limits: Limits, wanted: Limits, tpot: float) -> bool:
    """Returns True if full steps miss the TPOT target with these limits, and hold it with the wanted limits."""

    def full(pair: Limits) -> float:
        return full_step_seconds(model.replica, model.workload, pair)

    return full(wanted) <= tpot < full(limits)


def proves_wrong(
    view: TuningView,
    limits: Limits,
    bounds: LimitsBounds,
    slo: Slo,
    model: TuningModel,
    state: TuningState,
    policy: TuningPolicy,
) -> bool:
    """Returns True if tokens are late with these limits and the model, with what it learned from that, proposes smaller
    ones: they are nearer to the right ones than the middle between these and the previous ones."""
    if not _late(view, policy):
        return False
    wanted = modelled_limits(bounds, slo, model, _corrected(view, limits, slo, model, state, policy))
    return wanted != limits and _smaller(limits, wanted)


def judge_move(
    view: TuningView,
    limits: Limits,
    bounds: LimitsBounds,
    move: Move,
    state: TuningState,
    policy: TuningPolicy,
) -> TuningDecision:
    """Accepts or reverts the move; without enough data, nothing changes for a few windows."""
    after, before = _compared(view, move)
    if after is None:
        return end_canary(limits, state, view.time)
    if _smaller(move.frm, move.to):
        # Smaller steps slow no token down: late ones have another cause, for which to return would be no help.
        after = replace(after, tpot_within=max(after.tpot_within, before.tpot_within))
    left = math.ceil(policy.patience - (view.time - move.started))
    evidence = after.evidence if move.canary is None else min(after.evidence, before.evidence)
    if evidence < policy.evidence and left > 0:
        return TuningDecision(limits, (), Reason("Measuring", {"seconds": left}), state)
    done = replace(state, move=None)
    same_pods = move.canary is not None or view.pods == move.pods
    why = lost(before, after, policy, together=move.canary is not None) if same_pods else None
    if why is None:
        bracket = state.bracket
        if bracket is not None:
            done = replace(done, bracket=replace(bracket, good=move.to))
        if move.canary is None:
            return TuningDecision(limits, (), Reason("Kept", _shares(before, after)), done)
        done = replace(done, window_start=view.time)
        held = Reason("CanaryHeld", {"pod": move.canary.name, **_shares(before, after)})
        to = bounds.clamp(move.to)
        return TuningDecision(to, _changes(limits, to, held), held, done)
    bracket = Bracket(move.frm, move.to, move.wanted, view.time + policy.fence)
    done = replace(done, bracket=bracket, window_start=view.time)
    back = bounds.clamp(move.frm)
    if move.canary is not None:
        why = Reason("CanaryLost", {"pod": move.canary.name, **why.numbers})
        return TuningDecision(limits, _changes(move.to, limits, why), why, done)
    return TuningDecision(back, _changes(limits, back, why), why, done)


def end_canary(limits: Limits, state: TuningState, now: float) -> TuningDecision:
    """The canary gets the limits of the other pods again."""
    numbers: dict[str, Number] = {"pod": state.canary.name if state.canary is not None else ""}
    reason = Reason("CanaryEnded", numbers)
    changes = () if state.canary is None else _changes(state.canary.limits, limits, reason)
    return TuningDecision(limits, changes, reason, replace(state, move=None, window_start=now))


def lost(before: Quality, after: Quality, policy: TuningPolicy, *, together: bool) -> Reason | None:
    """Returns the reason why service quality counts as worse after a change; None if it does not.

    Fewer requests met their targets, by more than chance and load explain, or throughput dropped while requests waited
    and no more of them met their targets.

    Args:
        together: both were measured over the same seconds, on other pods: load is no explanation then.
    """
    numbers: dict[str, Number] = {**_shares(before, after), "tokens_before": before.tokens_per_s}
    numbers["tokens_now"] = after.tokens_per_s
    samples = max(1, min(before.evidence, after.evidence))
    share = min(0.95, max(0.05, (before.good + after.good) / 2))
    chance = 2 * math.sqrt(2 * share * (1 - share) / samples)
    more_load = not together and after.load > before.load * SAME_LOAD
    # With more requests served, a smaller share in time may be a larger number in time.
    fewer_kept = after.good * after.tokens_per_s < before.good * before.tokens_per_s
    if after.good < before.good - policy.loss - chance and fewer_kept and not more_load:
        return Reason("MoveTakenBack", numbers)
    waited = after.waiting >= 1 and (together or before.waiting >= 1)
    fewer = after.tokens_per_s < before.tokens_per_s * (1 - policy.throughput_loss)
    if waited and fewer and after.good < before.good + policy.loss + chance:
        return Reason("MoveTakenBack", numbers)
    return None


def _corrected(
    view: TuningView, limits: Limits, slo: Slo, model: TuningModel, state: TuningState, policy: TuningPolicy
) -> TuningState:
    """Corrections of the model from the measurements of this window: tokens slower than full steps allow or than the
    target where full steps should hold it, and preemptions. A correction only grows until it expires, so it cannot
    oscillate; it does not expire while its cause lasts."""
    target, slow, pace = slo.tpot_p95, view.tpot_p95, view.itl_mean
    until = view.time + policy.corrected
    full = full_step_seconds(model.replica, model.workload, limits)
    if target is not None and slow is not None and pace is not None and _late(view, policy):
        # Few slow requests beside a quick mean are not the size of steps, and smaller ones would not help them.
        blamed = full <= target * (1 + policy.dead_band) and pace > target * policy.room
        if blamed or pace > full * (1 + policy.dead_band / 2):
            # By how much the steps of the model, with what it has learned by now, are too short.
            tighter = max(TIGHTEST, state.tighten * 0.8, min(state.tighten, full / slow))
            if longest_step(model.replica, model.workload, Targets(None, target * tighter)) is None:
                tighter = state.tighten
            state = replace(state, tighten=tighter, tighten_until=until)
    if view.preemptions_per_min > policy.preemptions_per_min and view.running >= limits.max_num_seqs * 0.5:
        state = replace(state, memory=max(LEAST_MEMORY, state.memory * 0.85), memory_until=until)
    return state


def _late(view: TuningView, policy: TuningPolicy) -> bool:
    """Returns True if enough requests miss the TPOT target for certain: where it is no boundary of the histogram,
    percentiles are guesses, and corrections by guesses would not end."""
    return view.finished >= policy.evidence and view.tpot_late > 1 - policy.missed


def _targets(slo: Slo, model: TuningModel, state: TuningState) -> Targets:
    """Returns the targets to solve for."""
    return slo.targets.tightened(tpot_share(slo, model, state))


def tpot_share(slo: Slo, model: TuningModel, state: TuningState) -> float:
    """Returns the share of the TPOT target to solve for, in whole percent: steps may take longer than the model says,
    by its error or by what was measured. A correction after which requests became so large that one alone would miss
    the target does not apply: the target would count as none."""
    for correction in sorted((state.tighten, 1 - model.error)):
        share = round(correction, 2)
        solved = Targets(None, slo.tpot_p95).tightened(share)
        if longest_step(model.replica, model.workload, solved) is not None:
            return share
    return 1.0


def _margins(state: TuningState) -> Margins:
    return Margins(kv=Margins().kv * state.memory)


def _canary(view: TuningView, goal: Limits, policy: TuningPolicy) -> Canary | None:
    """Returns the pod with the most data as the canary, if there are others to compare it with and most requests meet
    their targets."""
    seen = [pod for pod in view.by_pod if pod.quality.first_tokens]
    clogged = view.waiting >= 1 and not view.quality.first_tokens
    if len(seen) < 2 or clogged or view.quality.good < policy.missed:
        return None
    most = max(seen, key=lambda pod: (pod.quality.first_tokens, pod.uid))
    return Canary(most.uid, most.name, goal)


def _compared(view: TuningView, move: Move) -> tuple[Quality | None, Quality]:
    """Returns the quality after and before a move; with a canary, its own and the mean of the other pods. None: the
    canary no longer exists, or has no peers."""
    if move.canary is None:
        return view.quality, move.before
    uid = move.canary.uid
    after = next((pod.quality for pod in view.by_pod if pod.uid == uid), None)
    others = [pod.quality for pod in view.by_pod if pod.uid != uid]
    return (after if others else None), _mean(others) if others else move.before


def _mean(qualities: Sequence[Quality]) -> Quality:
    """Returns the mean quality of several pods, as that of one pod."""
    first, finished = sum(one.first_tokens for one in qualities), sum(one.finished for one in qualities)
    number = len(qualities)
    return Quality(
        first_tokens=first,
        finished=finished,
        ttft_within=sum(one.ttft_within * one.first_tokens for one in qualities) / first if first else 1.0,
        tpot_within=sum(one.tpot_within * one.finished for one in qualities) / finished if finished else 1.0,
        tokens_per_s=sum(one.tokens_per_s for one in qualities) / number,
        load=sum(one.load for one in qualities) / number,
        waiting=sum(one.waiting for one in qualities) / number,
    )


def _settling(view: TuningView, model: TuningModel, policy: TuningPolicy) -> float:
    """Returns the approximate decode time of a request, in seconds."""
    return min(policy.settle, model.workload.output * (view.pace or 0.0))


def _by_model(model: TuningModel, slo: Slo, now: Limits, then: Limits) -> Reason:
    replica, workload = model.replica, model.workload
    target = longest_step(replica, workload, Targets(None, slo.tpot_p95))
    numbers: dict[str, Number] = {
        "error": model.error,
        "step": full_step_seconds(replica, workload, then),
        "step_now": full_step_seconds(replica, workload, now),
        "running": then.max_num_seqs,
        "rate": saturated_rate(replica, workload, then),
        "rate_now": saturated_rate(replica, workload, now),
    }
    if slo.tpot_p95 is not None and target is not None:
        numbers["target"] = slo.tpot_p95
    return Reason("ByCostModel", numbers)


def _advice(limits: Limits, goal: Limits, reason: Reason) -> Reason:
    knob = next(knob for knob in KNOBS if limits.get(knob) != goal.get(knob))
    return Reason("Recommending", {"knob": knob, "from": limits.get(knob), "to": goal.get(knob)}, held=reason)


def _changes(frm: Limits, to: Limits, reason: Reason, *, applied: bool = True) -> tuple[Decision, ...]:
    return tuple(
        Decision("Tuning", knob, frm.get(knob), to.get(knob), reason, applied)
        for knob in KNOBS
        if frm.get(knob) != to.get(knob)
    )


def _shares(before: Quality, after: Quality) -> dict[str, Number]:
    return {"good_before": before.good, "good_now": after.good}


def _smaller(frm: Limits, to: Limits) -> bool:
    """Returns True if neither limit is larger."""
    return all(to.get(knob) <= frm.get(knob) for knob in KNOBS)


def _differs(one: Limits, other: Limits) -> bool:
    pairs = ((one.get(knob), other.get(knob)) for knob in KNOBS)
    return any(max(pair) / min(pair) > CLOSED for pair in pairs)


def _halfway(frm: Limits, to: Limits) -> Limits:
    """Returns the middle of both, or `to` if that is near."""
    return _middle(frm, to) if _differs(frm, to) else to


def _middle(one: Limits, other: Limits) -> Limits:
    """Returns the geometric middle, knob by knob."""
    return Limits(*(round(math.sqrt(one.get(knob) * other.get(knob))) for knob in KNOBS))

"""Tuning without a cost model: additive increase, multiplicative decrease, one bounded step at a time, each measured
before the next.

Rules are evaluated in order; the first that proposes a step wins. A step that made service worse is reverted, and its
value becomes a fence: later steps in that direction go half of the way to it, until the rest is negligible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from inflight_operator.decide.decision import Number, Reason
from inflight_operator.decide.tuning.types import (
    Fence,
    Slo,
    Step,
    Trial,
    TuningDecision,
    TuningPolicy,
    TuningState,
    TuningView,
)
from inflight_settings.limits import Knob, Limits, LimitsBounds

SMALLEST_CUT = 0.9
LARGEST_CUT: dict[Knob, float] = {"max_num_seqs": 0.5, "max_num_batched_tokens": 0.25}
"""A multiplicative step down leaves at most and at least this share, in proportion to how far the target was missed.
The token budget has the wider range, often a hundred times what a step reaches, and takes hold at the next step."""

STEPS_OF_RANGE = 16
"""An additive step up is this fraction of the range between the bounds."""

PREFILL_SHARE = 2.0
"""Steps with more tokens than this times the running requests are mostly prefill (a decode adds one token each)."""

TAIL = 2.0
"""Without step sizes: p95 over p50 of inter-token latency from which prefill chunks are what delays decodes."""


SMALLEST_STEP = 1.15
"""A fence that leaves less than this ratio of a value ends the steps towards it."""


def step_by_rules(
    view: TuningView,
    limits: Limits,
    bounds: LimitsBounds,
    slo: Slo,
    state: TuningState,
    policy: TuningPolicy,
    *,
    advise: bool,
) -> TuningDecision:
    """Returns the next step, after the last one is judged."""
    trial = state.trial
    if trial is not None and trial.before.pods == view.pods:
        verdict = judge(trial, view, slo, policy)
        if verdict is not None:
            return _take_back(limits, bounds, state, trial, verdict, policy, view.time)
        if _out_of_reach(trial, view, slo, policy):
            # The step helped and stays; further steps would only cost throughput.
            rest = Fence("max_num_seqs", False, limits.max_num_seqs, view.time + policy.out_of_reach)
            state = _fenced(state, rest)
    # Judged, or measured while the number of replicas changed, which has more effect than any limit: in both cases the
    # step stays.
    restarted = replace(state, trial=None, window_start=view.time)
    step = propose(view, limits, bounds, slo, policy, state)
    if step is None:
        return TuningDecision(limits, (), _holds(view, slo), restarted)
    if advise:
        return step.advised(limits, restarted)
    return step.made(limits, replace(restarted, trial=Trial(step=step, before=view.kept(), started=view.time)))


def propose(
    view: TuningView, limits: Limits, bounds: LimitsBounds, slo: Slo, policy: TuningPolicy, state: TuningState
) -> Step | None:
    """Returns the next step, or None if no rule proposes one."""
    for rule in _RULES:
        step = rule(view, limits, bounds, slo, policy)
        step = _before_fences(step, state) if step is not None else None
        if step is not None:
            return step
    return None


def judge(trial: Trial, view: TuningView, slo: Slo, policy: TuningPolicy) -> Reason | None:
    """Why the step on trial made service worse; None if it stays.

    A step up is worse when it broke the TPOT target that held before, or caused preemptions. A step down is worse when
    it cost throughput while requests waited, without faster decoding.
    """
    return _worse_up(trial, view, slo, policy) if trial.step.up else _worse_down(trial, view, policy)


def still_draining(view: TuningView, limits: Limits, state: TuningState, policy: TuningPolicy) -> bool:
    """A lowered slot limit takes effect as running requests finish; measurements before that show the old limit.
    Bounded, so that endless requests cannot stop tuning."""
    last = state.trial or state.move
    lowered = (state.trial is not None and state.trial.step.knob == "max_num_seqs") or (
        state.move is not None and state.move.to.max_num_seqs < state.move.frm.max_num_seqs
    )
    if last is None or not lowered:
        return False
    patience = policy.window * policy.drain_windows
    return view.running_now > limits.max_num_seqs and view.time - last.started < patience


def fewer_slots_when_memory_is_short(
    view: TuningView, limits: Limits, bounds: LimitsBounds, slo: Slo, policy: TuningPolicy
) -> Step | None:
    """Preempted requests are recomputed: admit only as many as the KV cache can hold."""
    if view.preemptions_per_min <= policy.preemptions_per_min:
        return None
    why = Reason("Preemptions", {"preemptions": view.preemptions_per_min, "kv": view.kv_usage})
    return _cut_slots(view, limits, bounds, 0.75, why)


def smaller_steps_when_prefill_delays_decodes(
    view: TuningView, limits: Limits, bounds: LimitsBounds, slo: Slo, policy: TuningPolicy
) -> Step | None:
    """Decodes wait for the whole step they share with a prefill chunk: cut the chunk before the batch."""
    over = _over_target(view, slo, policy)
    if over is None or not _prefill_interferes(view, slo):
        return None
    # A limit far above the tokens of actual steps has no effect: start from the actual tokens.
    reached = view.step_tokens_p95 if view.step_tokens_p95 is not None else limits.max_num_batched_tokens
    start = min(limits.max_num_batched_tokens, max(1, math.ceil(reached)))
    to = _even(math.floor(start * _cut("max_num_batched_tokens", view, slo)))
    # Every running request takes one token of each step; the same amount is reserved for prefill, or the queue would
    # starve.
    to = max(to, bounds.low.max_num_batched_tokens, view.running_now * 2)
    return _step("max_num_batched_tokens", limits, to, _tpot_over(view, slo, prefill=True))


def fewer_slots_when_decodes_are_slow(
    view: TuningView, limits: Limits, bounds: LimitsBounds, slo: Slo, policy: TuningPolicy
) -> Step | None:
    """The batch itself is too large for the target."""
    over = _over_target(view, slo, policy)
    if over is None:
        return None
    pace, target = view.pace, slo.tpot_p95
    if pace is not None and target is not None and pace < target * policy.room:
        return None  # current requests meet the target: finished ones reflect earlier limits
    return _cut_slots(view, limits, bounds, _cut("max_num_seqs", view, slo), _tpot_over(view, slo, prefill=False))


def more_slots_when_requests_wait(
    view: TuningView, limits: Limits, bounds: LimitsBounds, slo: Slo, policy: TuningPolicy
) -> Step | None:
    """Requests wait for a slot while decodes have room."""
    if view.waiting < 1 or view.running < limits.max_num_seqs * 0.9:
        return None
    room = _room(view, slo, policy)
    if room is None:
        return None
    step = max(1, math.ceil((bounds.high.max_num_seqs - bounds.low.max_num_seqs) / STEPS_OF_RANGE))
    if room <= 0.5:  # far from the target: double, as TCP's slow start does
        step = max(step, limits.max_num_seqs)
    fits = math.floor(limits.max_num_seqs * policy.kv_full / max(view.kv_usage, 0.01))
    to = min(limits.max_num_seqs + step, bounds.high.max_num_seqs, max(fits, limits.max_num_seqs))
    why = Reason("RequestsWait", {"waiting": view.waiting, **_tpot_room(view, slo)})
    return _step("max_num_seqs", limits, to, why)


def larger_steps_when_prompts_wait(
    view: TuningView, limits: Limits, bounds: LimitsBounds, slo: Slo, policy: TuningPolicy
) -> Step | None:
    """First tokens are late because prefill chunks are too small, and decodes have room."""
    if slo.ttft_p95 is None or view.ttft_p95 is None or view.ttft_p95 <= slo.ttft_p95 * (1 + policy.dead_band):
        return None
    if view.waiting_prompt_tokens is not None and view.waiting_prompt_tokens < limits.max_num_batched_tokens:
        return None  # one step computes all that waits
    if view.waiting_prompt_tokens is None and view.waiting < 1:
        return None
    if view.step_tokens_p95 is not None and view.step_tokens_p95 < limits.max_num_batched_tokens * 0.8:
        return None  # steps do not reach the budget: it does not delay prompts
    if _room(view, slo, policy) is None:
        return None
    step = max(16, math.ceil((bounds.high.max_num_batched_tokens - bounds.low.max_num_batched_tokens) / STEPS_OF_RANGE))
    to = min(_even(limits.max_num_batched_tokens + step), bounds.high.max_num_batched_tokens)
    numbers = {"ttft": view.ttft_p95, "ttft_target": slo.ttft_p95, **_tpot_room(view, slo)}
    return _step("max_num_batched_tokens", limits, to, Reason("TtftOverTarget", numbers))


_RULES: tuple[Callable[[TuningView, Limits, LimitsBounds, Slo, TuningPolicy], Step | None], ...] = (
    fewer_slots_when_memory_is_short,
    smaller_steps_when_prefill_delays_decodes,
    fewer_slots_when_decodes_are_slow,
    more_slots_when_requests_wait,
    larger_steps_when_prompts_wait,
)


def _before_fences(step: Step, state: TuningState) -> Step | None:
    """The step, or half of the way to a fence that it would reach; None if the rest is negligible."""
    values = [fence.value for fence in state.fences if (fence.knob, fence.up) == (step.knob, step.up)]
    if not values:
        return step
    fence = min(values) if step.up else max(values)
    if (step.to < fence) if step.up else (step.to > fence):
        return step
    to = round((step.frm + fence) / 2)
    near = max(step.frm, fence) <= min(step.frm, fence) * SMALLEST_STEP or to in (step.frm, fence)
    past = fence <= step.frm if step.up else fence >= step.frm
    return None if near or past else replace(step, to=to)


def _fenced(state: TuningState, fence: Fence) -> TuningState:
    """Returns the fences with `fence` in place of that on the same side of the knob."""
    others = [one for one in state.fences if (one.knob, one.up) != (fence.knob, fence.up)]
    return replace(state, fences=(*others, fence))


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
    """Returns True if a step down showed that even a request alone would miss the target. Time per token against
    running requests is close to a line; two limits determine it, and thus the time of a single request."""
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
    state = _fenced(state, Fence(made.knob, made.up, made.to, now + policy.fence))
    state = replace(state, trial=None, window_start=now)
    to = bounds.clamp(limits.with_(made.knob, made.frm)).get(made.knob)
    if to == made.to:
        return TuningDecision(limits, (), Reason("NoWayBack", why.numbers), state)
    return Step(made.knob, made.to, to, why).made(limits, state)


def _holds(view: TuningView, slo: Slo) -> Reason:
    if view.tpot is None or slo.tpot_p95 is None:
        return Reason("InDeadBand", {"running": view.running, "waiting": view.waiting})
    return Reason("InDeadBand", {"tpot": view.tpot, "tpot_target": slo.tpot_p95})


def _cut_slots(view: TuningView, limits: Limits, bounds: LimitsBounds, factor: float, why: Reason) -> Step | None:
    # Lowering a limit far above the running requests has no effect: start from the running requests.
    start = min(limits.max_num_seqs, max(1, math.ceil(max(view.running, view.running_now))))
    to = max(min(math.floor(start * factor), start - 1), bounds.low.max_num_seqs)
    return _step("max_num_seqs", limits, to, why) if to < limits.max_num_seqs else None


def _step(knob: Knob, limits: Limits, to: int, why: Reason) -> Step | None:
    frm = limits.get(knob)
    if to == frm or (why.code == "TpotOverTarget" and to > frm):
        return None
    return Step(knob, frm, to, why)


def _over_target(view: TuningView, slo: Slo, policy: TuningPolicy) -> float | None:
    """Returns TPOT over its target as a ratio; None within the dead band or without measurements."""
    if slo.tpot_p95 is None or view.tpot is None:
        return None
    if view.running_now < view.running / 2:
        return None  # the load is ending: the rest says little about the limits
    ratio = view.tpot / slo.tpot_p95
    return ratio if ratio > 1 + policy.dead_band else None


def _room(view: TuningView, slo: Slo, policy: TuningPolicy) -> float | None:
    """Returns TPOT as a share of its target if well below it, else None. Without a target there is always room, and
    memory is the only bound."""
    if slo.tpot_p95 is None:
        return policy.room
    if view.tpot is None:
        return None
    share = max(view.tpot, view.pace or 0.0) / slo.tpot_p95
    return share if share < policy.room else None


def _prefill_interferes(view: TuningView, slo: Slo) -> bool:
    if view.step_tokens_p50 is not None and view.step_tokens_p95 is not None:
        decodes = max(view.running, 1.0)
        if view.step_tokens_p50 > PREFILL_SHARE * decodes:  # the median step: one burst has no effect
            return True
        # Prefill in few steps only: prefill is the cause if the other, typical steps meet the target.
        typical_holds = view.itl_p50 is not None and slo.tpot_p95 is not None and view.itl_p50 <= slo.tpot_p95
        return view.step_tokens_p95 > PREFILL_SHARE * decodes and typical_holds
    if view.itl_p50 is None or view.itl_p95 is None:
        return False
    return view.itl_p95 > TAIL * view.itl_p50


def _cut(knob: Knob, view: TuningView, slo: Slo) -> float:
    pace = view.pace or slo.tpot_p95 or 1.0
    return max(LARGEST_CUT[knob], min(SMALLEST_CUT, (slo.tpot_p95 or pace) / pace))


def _even(tokens: int) -> int:
    """Returns the value rounded to whole KV blocks of 16 tokens, from 32 on."""
    return tokens if tokens < 32 else tokens // 16 * 16


def _tpot_over(view: TuningView, slo: Slo, *, prefill: bool) -> Reason:
    numbers: dict[str, Number] = {"tpot": view.tpot or 0.0, "tpot_target": slo.tpot_p95 or 0.0, "prefill": int(prefill)}
    return Reason("TpotOverTarget", {"measure": _tpot_name(view), **numbers})


def _tpot_room(view: TuningView, slo: Slo) -> dict[str, Number]:
    if slo.tpot_p95 is None:
        return {"kv": view.kv_usage}
    return {"measure": _tpot_name(view), "tpot": view.tpot or 0.0, "tpot_target": slo.tpot_p95}


def _tpot_name(view: TuningView) -> str:
    return "p95 TPOT" if view.tpot == view.tpot_p95 else "mean inter-token latency"

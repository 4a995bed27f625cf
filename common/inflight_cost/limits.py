"""The limits with which an engine holds its latency targets however many requests wait, by the cost model.

Under overload all steps are full, and requests end as fast as they are admitted: a step that computes the prompts of x
requests decodes output tokens of x requests as well. The pair follows from the largest x whose step holds the TPOT
target: `max_num_batched_tokens` is what such a step computes, `max_num_seqs` what decodes in it, and the requests whose
prompts it computes. With fewer requests steps are shorter, so what holds there holds always; and it does not depend on
the rate of arrivals, so it stays as it is while load comes and goes.

The target is one of the mean over a request's tokens, and a request of few tokens meets few steps: where steps beyond
the target were allowed, a prompt of several such steps would delay it alone. Steps that all hold the target lose less
capacity to their size than such requests are.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

from inflight_cost.capacity import Margins, Replica, Targets, Workload, full_step_seconds
from inflight_cost.model import StepWork
from inflight_settings.limits import Limits, LimitsBounds

_HALVINGS = 50

_MOST_TOKENS = 2.0**24

_TTFT_SHARE = 0.25
"""Share of the TTFT target of a mean prompt that a step may take: requests that just missed a step wait for its end."""

_THROUGHPUT = 0.98
"""Without a latency target: share of the prompt tokens a second of unlimited steps that the limits must reach."""

_FULL_STEP, _ALL_SLOTS = 0.95, 0.98
"""Shares of the TPOT target that a full step may take: with the decodes of an overload, and with all slots decoding.
Durations vary, and at the target itself half of the requests would miss it."""


def best_limits(
    replica: Replica,
    workload: Workload,
    targets: Targets,
    bounds: LimitsBounds,
    margins: Margins | None = None,
) -> Limits:
    """The largest limits within `bounds` that hold the targets for all that they admit.

    Rounded down to steps of 1.5% to 3%, so that small changes of the measurements change nothing. A TPOT target that
    one request alone would miss counts as none: no limit would help.
    """
    margins = margins or Margins()
    memory = max(1.0, margins.kv * replica.kv_tokens / max(1.0, workload.decode_context))
    most = min(memory, bounds.high.max_num_seqs)
    longest = longest_step(replica, workload, targets)
    if longest is None:
        tokens = most + _efficient_prefill(replica, workload)
        return bounds.clamp(Limits(_rounded(most), _rounded(tokens)))

    # More requests than the budget computes prompts for would take the room of prompts in each step.
    budgeted = bounds.high.max_num_batched_tokens / max(1.0, workload.computed + workload.output)
    decodes = min(most, max(1.0, min(_overload(replica, workload, longest), budgeted) * workload.output))
    prefill = largest(lambda tokens: _seconds(replica, workload, decodes, tokens) <= longest)
    prefill = min(prefill, max(0.0, bounds.high.max_num_batched_tokens - decodes))
    # Requests whose prompts a step computes hold slots beside those that decode. With more slots an overload that lasts
    # would lengthen steps, and without one nobody needs them.
    slots = decodes + max(1.0, prefill / max(1.0, workload.computed))
    return bounds.clamp(Limits(_rounded(min(most, slots)), _rounded(decodes + prefill)))


def saturated_rate(replica: Replica, workload: Workload, limits: Limits) -> float:
    """Requests a second that a replica does with these limits while there are always more that wait."""
    requests = min(
        limits.max_num_seqs / max(1.0, workload.output),
        limits.max_num_batched_tokens / max(1.0, workload.computed + workload.output),
    )
    return requests / _seconds(replica, workload, requests * workload.output, requests * workload.computed)


def worth(
    replica: Replica, workload: Workload, targets: Targets, limits: Limits, margins: Margins | None = None
) -> float:
    """Requests a second under overload, less by as much as full steps are over the target and slots over the memory:
    a number to compare limits by."""
    margins = margins or Margins()
    rate = saturated_rate(replica, workload, limits)
    longest = longest_step(replica, workload, targets)
    if longest is not None:
        rate *= min(1.0, longest / _FULL_STEP * _ALL_SLOTS / full_step_seconds(replica, workload, limits))
    memory = margins.kv * replica.kv_tokens / max(1.0, workload.decode_context)
    return rate * min(1.0, memory / limits.max_num_seqs)


def longest_step(replica: Replica, workload: Workload, targets: Targets) -> float | None:
    """Seconds that a full step may take; None: no target bounds it."""
    alone = _seconds(replica, workload, 1, workload.computed / max(1.0, workload.output))
    bounds = []
    if targets.tpot is not None:
        bounds.append(targets.tpot * _FULL_STEP)
    ttft = targets.ttft_of(workload.prompt)
    if ttft is not None:
        bounds.append(ttft * _TTFT_SHARE)
    return min((bound for bound in bounds if bound > alone), default=None)


def _overload(replica: Replica, workload: Workload, longest: float) -> float:
    """Requests of which a step of `longest` seconds computes the prompts, and as many outputs' worth of decodes."""

    def holds(requests: float) -> bool:
        return _seconds(replica, workload, requests * workload.output, requests * workload.computed) <= longest

    return largest(holds)


def _efficient_prefill(replica: Replica, workload: Workload) -> float:
    """Prompt tokens of a step from which larger steps compute hardly more of them a second."""
    longest = _seconds(replica, workload, 0, _MOST_TOKENS)
    return largest(
        lambda tokens: tokens * longest <= _THROUGHPUT * _MOST_TOKENS * _seconds(replica, workload, 0, tokens)
    )


def _seconds(replica: Replica, workload: Workload, decodes: float, prefill: float) -> float:
    attended = prefill * workload.attended / max(1.0, workload.computed)
    return replica.cost.seconds(StepWork(decodes, prefill, decodes * workload.decode_context, attended))


def largest(holds: Callable[[float], bool], most: float = _MOST_TOKENS) -> float:
    """The largest number up to `most` for which `holds`, which is true up to some number, is true."""
    if holds(most):
        return most
    # The first halvings find the power of 2 below the number; a bisection of the powers takes fewer calls for that.
    halvings = bisect_left(range(_HALVINGS), True, key=lambda halvings: holds(most / 2 ** (halvings + 1)))
    low, high = (most / 2 ** (halvings + 1) if halvings < _HALVINGS else 0.0), most / 2**halvings
    for _ in range(_HALVINGS - halvings - 1):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _rounded(number: float) -> int:
    """Rounds down to a multiple of a power of 2 that is 1.5% to 3% of the number."""
    step = 1 << max(0, math.floor(math.log2(max(1.0, number) / 32)))
    # What is above a multiple by less than a computed number is wrong by is that multiple.
    return max(1, math.floor(number / step + 1e-6) * step)

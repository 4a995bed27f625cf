"""Capacity of one replica within its latency targets, and the limits to set, by the cost model.

At `rate` requests a second a replica spends a share of its time on prefill; what is left goes to decodes, whose number
follows from Little's law: D = rate x output tokens x seconds a token. All of it is means; `Margins` hold the distance
to them that tails need.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from inflight_cost.model import CostModel, StepWork
from inflight_settings.limits import Limits

_HALVINGS = 20


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes of requests, in tokens.

    Attributes:
        prompt: mean length of a prompt.
        computed: mean part of it that is computed; the rest is found in the prefix cache.
        prompt_square: mean of the squares of prompt lengths.
        output: mean length of an output.
        output_square: mean of the squares of output lengths.
    """

    prompt: float
    computed: float
    prompt_square: float
    output: float
    output_square: float

    @property
    def decode_context(self) -> float:
        """Tokens that a decode attends to on average: longer outputs are met more often."""
        return self.prompt + self.output_square / (2 * max(self.output, 1.0))

    @property
    def attended(self) -> float:
        """Prefill tokens x context of a request, summed, as in `StepWork.prefill_context_tokens`."""
        return self.prompt_square / 2 * (self.computed / max(self.prompt, 1.0))


@dataclass(frozen=True, slots=True)
class Targets:
    """Latency targets in seconds; None: no target.

    Attributes:
        ttft_per_token: seconds that each token of a prompt adds to its TTFT target.
    """

    ttft: float | None = None
    tpot: float | None = None
    ttft_per_token: float = 0.0

    def ttft_of(self, prompt_tokens: float) -> float | None:
        """The TTFT target of a prompt of so many tokens."""
        return None if self.ttft is None else self.ttft + self.ttft_per_token * prompt_tokens

    def tightened(self, share: float) -> Targets:
        """These targets with a share of the TPOT target."""
        return replace(self, tpot=None if self.tpot is None else self.tpot * share)


@dataclass(frozen=True, slots=True)
class Margins:
    """Shares of capacity that means may use; the rest is for their variation.

    Attributes:
        prefill: share of the prompt tokens that full steps could compute.
        busy: share of the time that may be spent on prefill.
        kv: share of the KV cache that running requests may hold.
        tpot: share of the TPOT target that the mean may reach.
    """

    prefill: float = 0.75
    busy: float = 0.97
    kv: float = 0.9
    tpot: float = 0.95


@dataclass(frozen=True, slots=True)
class Steady:
    """A replica at a constant rate.

    Attributes:
        tpot: mean seconds between two tokens of a request; infinite where the rate is more than it can do.
        running: requests that decode.
        prefill_share: share of the time spent on prefill.
        prefill_load: prompt tokens that arrive, as a share of those that full steps could compute.
    """

    tpot: float
    running: float
    prefill_share: float
    prefill_load: float


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica's capacity. Attributes: kv_tokens: tokens that the KV cache holds."""

    cost: CostModel
    kv_tokens: float


def steady(replica: Replica, workload: Workload, rate: float, limits: Limits) -> Steady:
    """Returns the state that a replica settles at with `rate` requests a second."""
    cost, context = replica.cost, workload.decode_context
    tokens = rate * workload.computed
    # A curve stands in for constant, decodes and prompt tokens: its slope between a decode step and a full one is what
    # a prompt token costs there.
    slope = _curve_slope(cost, limits.max_num_batched_tokens)
    share = tokens * (cost.prefill_token_s + slope) + rate * workload.attended * cost.prefill_context_token_s
    if share >= 1:
        return Steady(math.inf, math.inf, share, math.inf)
    running, tpot = 0.0, cost.seconds(StepWork(1, 0, context, 0)) / (1 - share)
    for _ in range(_HALVINGS):
        running = rate * workload.output * tpot
        after = cost.seconds(StepWork(max(1.0, running), 0, max(1.0, running) * context, 0)) / (1 - share)
        if after > 1e3:
            return Steady(math.inf, math.inf, share, math.inf)
        if abs(after - tpot) <= 1e-5 * tpot:
            break
        tpot = after
    room = max(1.0, limits.max_num_batched_tokens - running)
    full = full_step_seconds(replica, workload, Limits(math.ceil(running), limits.max_num_batched_tokens))
    return Steady(tpot, running, share, tokens / (room / full))


def full_step_seconds(replica: Replica, workload: Workload, limits: Limits) -> float:
    """Returns the seconds of a step with all slots decoding and the rest of the budget in prefill."""
    decodes = max(1, limits.max_num_seqs)
    prefill = max(0, limits.max_num_batched_tokens - decodes)
    attended = prefill * workload.attended / max(1.0, workload.computed)
    return replica.cost.seconds(StepWork(decodes, prefill, decodes * workload.decode_context, attended))


def largest_rate(
    replica: Replica, workload: Workload, targets: Targets, limits: Limits, margins: Margins | None = None
) -> float:
    """Requests a second that one replica carries within its targets; 0: not even one at a time."""
    margins = margins or Margins()

    def holds(rate: float) -> bool:
        found = steady(replica, workload, rate, limits)
        if found.prefill_share > margins.busy or found.running > limits.max_num_seqs:
            return False
        if found.running * workload.decode_context > margins.kv * replica.kv_tokens:
            return False
        if targets.tpot is not None and found.tpot > margins.tpot * targets.tpot:
            return False
        return targets.ttft is None or found.prefill_load <= margins.prefill

    low, high = 0.0, 1.0
    while holds(high) and high < 1e6:
        low, high = high, high * 2
    while low == 0.0 and high > 1e-3 and not holds(high / 2):
        high /= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _curve_slope(cost: CostModel, tokens: float) -> float:
    if not cost.curve:
        return 0.0
    most = max(2.0, tokens)
    return max(0.0, cost.on_curve(most) - cost.on_curve(1)) / (most - 1)

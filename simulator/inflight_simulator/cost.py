"""How long a step takes: a model of what it computes."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from inflight_cost.model import CostModel
from inflight_engine.scheduling.config import SwapRates
from inflight_simulator.errors import InputError


class StepWork(NamedTuple):
    """What a step computes.

    Attributes:
        decode_seqs: sequences that compute one token each.
        prefill_tokens: prompt tokens computed.
        decode_kv_tokens: tokens whose keys and values the decodes read, all sequences together.
        prefill_context_tokens: for each prompt token the tokens it attends to, summed.
        copied_tokens: tokens whose keys and values are copied to or from host memory.
    """

    decode_seqs: int
    prefill_tokens: int
    decode_kv_tokens: int
    prefill_context_tokens: int
    copied_tokens: int


def attended_tokens(start: int, length: int) -> int:
    """Sum over the tokens [start, start + length) of a sequence of the tokens each attends to, itself included."""
    return length * start + length * (length + 1) // 2


class Cost(Protocol):
    """Seconds of a step."""

    def seconds(self, work: StepWork) -> float: ...


class UnitCost:
    """A step takes 1 s and prefill is free, as in textbook comparisons of batching."""

    def seconds(self, work: StepWork) -> float:
        return 1.0


class LinearCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds: a constant, one factor for each number of `StepWork`, and what `curve` says.

    No machine is quite linear in the tokens that a step computes: products of few rows cost more each than those of
    many, and kernels change at certain sizes. `curve` are pairs of tokens, ascending, and seconds; between them it is
    interpolated, before the first it stays. After the last it goes on, if that rises, as it came from the last point
    of at most half as many tokens: noise in points that lie close together must not decide it. Empty: 0.

    The defaults are arithmetic on data sheets, not a measurement: Llama-3-8B in bfloat16 on one H100 SXM. Every step
    reads the weights (16.1 GB at 3.35 TB/s); a token computes 2 x 8.03e9 operations and 4 x 32 layers x 4096 for each
    token it attends to, at half of 989e12 a second; a decode reads 131,072 bytes for each token of its context; copies
    go over PCIe 5.0 at 50 GB/s. `inflight-simulate calibrate` fits the factors to a run of a real engine.
    """

    base_s: float = 4.8e-3
    decode_seq_s: float = 3.2e-5
    prefill_token_s: float = 3.2e-5
    decode_kv_token_s: float = 3.9e-8
    prefill_context_token_s: float = 1.1e-9
    copied_token_s: float = 2.6e-6
    curve: tuple[tuple[float, float], ...] = ()

    def seconds(self, work: StepWork) -> float:
        return (
            self.base_s
            + self.decode_seq_s * work.decode_seqs
            + self.prefill_token_s * work.prefill_tokens
            + self.decode_kv_token_s * work.decode_kv_tokens
            + self.prefill_context_token_s * work.prefill_context_tokens
            + self.copied_token_s * work.copied_tokens
            + self._on_curve(work.decode_seqs + work.prefill_tokens)
        )

    def _on_curve(self, tokens: int) -> float:
        curve = self.curve
        if not curve:
            return 0.0
        after = bisect_right(curve, tokens, key=itemgetter(0))
        if after == 0 or len(curve) == 1:
            return curve[0][1]
        right, high = curve[min(after, len(curve) - 1)]
        if after == len(curve):
            left, low = curve[max(bisect_right(curve, right / 2, key=itemgetter(0)) - 1, 0)]
            return high + max(0.0, high - low) / (right - left) * (tokens - right)
        left, low = curve[after - 1]
        return low + (high - low) / (right - left) * (tokens - left)


_PREFILL = 512
"""Prompt tokens by which the cost of recomputing one is told."""


def swap_rates(cost: Cost) -> SwapRates | None:
    """What the scheduler weighs a swap by; None: recomputing or copying costs nothing, so there is nothing to weigh."""
    if not isinstance(cost, LinearCost) or not cost.copied_token_s:
        return None
    prefill_s = cost.seconds(StepWork(0, _PREFILL, 0, 0, 0)) - cost.seconds(StepWork(0, 0, 0, 0, 0))
    return SwapRates(prefill=_PREFILL / prefill_s, copy=1 / cost.copied_token_s) if prefill_s > 0 else None


def prefill_cost(cost: Cost) -> CostModel | None:
    """What the scheduler predicts prefills with; None: prefill is free."""
    return CostModel(**msgspec.structs.asdict(cost)) if isinstance(cost, LinearCost) else None


def read_cost(path: Path) -> LinearCost:
    """The cost model that `calibrate --out` wrote; a factor that is not in the file is the default one.

    Raises:
        InputError: the file cannot be read, or is not a JSON object of factors in seconds.
    """
    try:
        cost = msgspec.json.decode(path.read_bytes(), type=LinearCost)
        check_cost(cost)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    return cost


def check_cost(cost: LinearCost) -> None:
    """Raises InputError: a factor is negative or not finite, the curve is none, or a step could take no time at all."""
    factors = msgspec.structs.asdict(cost)
    curve = factors.pop("curve")
    tokens = [each for each, _ in curve]
    if tokens != sorted(set(tokens)) or not all(0 <= seconds < float("inf") for _, seconds in curve):
        raise InputError("curve must be pairs of tokens, ascending, and seconds of 0 or more")
    for name, value in factors.items():
        if not 0 <= value < float("inf"):
            raise InputError(f"{name} must be 0 or more, not {value}")
    least = min((seconds for _, seconds in curve), default=0)
    if cost.base_s + least + min(cost.decode_seq_s, cost.prefill_token_s) == 0:
        raise InputError("base_s must be above 0 unless decode_seq_s and prefill_token_s are: each step takes time")


def write_cost(path: Path, cost: LinearCost) -> None:
    """Raises OSError."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(cost), indent=2) + b"\n")

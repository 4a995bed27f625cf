"""The choice between loading keys and values from a tier and computing them again."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_cost.model import CostModel


@dataclass(frozen=True, slots=True)
class LoadRates:
    """Rates measured recently, in tokens a second: of computing a prefill, and of copying keys and values one way."""

    prefill: float
    copy: float


def loading_is_cheaper(
    num_tokens: int, num_before: int, rates: LoadRates, cost: CostModel | None, seconds: float = 0.0
) -> bool:
    """Return whether copying the keys and values of tokens in takes less time than computing them.

    Args:
        num_before: tokens before them, to which they attend.
        cost: predicts the prefill; None: it goes at `rates.prefill`.
        seconds: until the copy can begin.
    """
    if rates.copy <= 0:
        return False
    return seconds + num_tokens / rates.copy < computing_seconds(num_tokens, num_before, rates, cost)


def computing_seconds(num_tokens: int, num_before: int, rates: LoadRates, cost: CostModel | None) -> float:
    """Predict how long computing tokens takes; arguments as of `loading_is_cheaper`."""
    if cost is not None:
        return cost.prefill_seconds(num_tokens, num_before)
    return num_tokens / rates.prefill

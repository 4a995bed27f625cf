"""The choice between loading keys and values from a tier and computing them again."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_cost.model import CostModel


@dataclass(frozen=True, slots=True)
class LoadRates:
    """Rates measured recently, in tokens a second: of computing a prefill, and of copying keys and values one way."""

    prefill: float
    copy: float


def loading_is_cheaper(num_tokens: int, num_before: int, rates: LoadRates, cost: CostModel | None) -> bool:
    """Return whether copying the keys and values of tokens in takes less time than computing them.

    Args:
        num_before: tokens before them, to which they attend.
        cost: predicts the prefill; None: it goes at `rates.prefill`.
    """
    if rates.copy <= 0:
        return False
    copying = num_tokens / rates.copy
    if cost is not None:
        return copying < cost.prefill_seconds(num_tokens, num_before)
    return copying * rates.prefill < num_tokens

"""The choice between swapping and recomputing a preempted request's keys and values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SwapRates:
    """Rates measured recently, in tokens a second: of computing a prefill, and of copying keys and values one way."""

    prefill: float
    copy: float


def swapping_is_cheaper(num_computed_tokens: int, rates: SwapRates) -> bool:
    """Return whether copying a request's keys and values out and back takes less time than computing them again.

    A swap copies each token twice, out now and back when the request resumes; recomputing pays for the prefill of the
    same tokens once (the two ways of PagedAttention, Kwon et al. 2023, section 4.5). So it swaps where

        2 * num_computed_tokens / rates.copy < num_computed_tokens / rates.prefill

    The last known token is computed after either, so it is on neither side. Both sides grow in step with the length,
    so lengths decide only where there is nothing to copy. Attention makes a long prefill slower than a short one, so
    with a rate measured on prompts of usual length, long requests are recomputed a little too often, never the other
    way round. A tie is recomputed, which takes no host memory, and so is everything while no copy was measured (0).
    """
    return 2 * num_computed_tokens * rates.prefill < num_computed_tokens * rates.copy

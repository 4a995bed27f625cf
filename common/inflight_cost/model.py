"""Duration of an engine step as a function of its work."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple


class StepWork(NamedTuple):
    """Amounts of work in a step.

    Attributes:
        decode_seqs: sequences that compute one token each.
        prefill_tokens: prompt tokens computed.
        decode_kv_tokens: tokens whose keys and values the decodes read, all sequences together.
        prefill_context_tokens: for each prompt token the tokens it attends to, summed.
        copied_tokens: tokens whose keys and values are copied to or from host memory.
    """

    decode_seqs: float
    prefill_tokens: float
    decode_kv_tokens: float
    prefill_context_tokens: float
    copied_tokens: float = 0


def attended_tokens(start: int, length: int) -> int:
    """Sum over the tokens [start, start + length) of a sequence of the tokens each attends to, itself included."""
    return length * start + length * (length + 1) // 2


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of a step: a constant, a factor for each number of `StepWork`, and the value of `curve`.

    No machine is quite linear in the tokens that a step computes: products of few rows cost more each than those of
    many, and kernels change at certain sizes. `curve` are pairs of tokens, ascending, and seconds; between them it is
    interpolated, before the first it stays. After the last it goes on, if that rises, as it came from the last point
    of at most half as many tokens: noise in points that lie close together must not decide it. Empty: 0.
    """

    base_s: float
    decode_seq_s: float
    prefill_token_s: float
    decode_kv_token_s: float
    prefill_context_token_s: float
    copied_token_s: float = 0.0
    curve: tuple[tuple[float, float], ...] = ()

    def seconds(self, work: StepWork) -> float:
        return (
            self.base_s
            + self.decode_seq_s * work.decode_seqs
            + self.prefill_token_s * work.prefill_tokens
            + self.decode_kv_token_s * work.decode_kv_tokens
            + self.prefill_context_token_s * work.prefill_context_tokens
            + self.copied_token_s * work.copied_tokens
            + (self.on_curve(work.decode_seqs + work.prefill_tokens) if self.curve else 0.0)
        )

    def prefill_seconds(self, tokens: float, cached: float = 0.0) -> float:
        """Returns the seconds that computing `tokens` of a prompt adds to steps that run anyway, after `cached` tokens
        of it that are in the cache already."""
        attended = tokens * cached + tokens * (tokens + 1) / 2
        return (
            self.prefill_token_s * tokens
            + self.prefill_context_token_s * attended
            + max(0.0, self.on_curve(tokens) - self.on_curve(1))
        )

    def on_curve(self, tokens: float) -> float:
        """Returns the seconds of `curve` for a step of so many tokens."""
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


TERMS = {
    "step": "base_s",
    "decode_sequence": "decode_seq_s",
    "prefill_token": "prefill_token_s",
    "decode_kv_token": "decode_kv_token_s",
    "prefill_context_token": "prefill_context_token_s",
    "copied_token": "copied_token_s",
}
"""Label `term` of the metrics of the step cost: field of `CostModel`. After the first, in the order of the fields of
`StepWork`."""

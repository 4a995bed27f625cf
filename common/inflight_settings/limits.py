"""The two limits that change while an engine runs: values, changes, bounds, default and highest value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Knob = Literal["max_num_seqs", "max_num_batched_tokens"]

KNOBS: tuple[Knob, Knob] = ("max_num_seqs", "max_num_batched_tokens")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an engine's scheduler, named as in `/v1/runtime_config`.

    Attributes:
        max_num_seqs: maximum requests that run at once, each with a slot.
        max_num_batched_tokens: maximum tokens computed in one step, decode and prefill together.
    """

    max_num_seqs: int
    max_num_batched_tokens: int

    def get(self, knob: Knob) -> int:
        return self.max_num_seqs if knob == "max_num_seqs" else self.max_num_batched_tokens

    def with_(self, knob: Knob, value: int) -> Limits:
        if knob == "max_num_seqs":
            return replace(self, max_num_seqs=value)
        return replace(self, max_num_batched_tokens=value)

    def at_most(self, other: Limits) -> Limits:
        """The smaller of both, knob by knob."""
        return Limits(
            min(self.max_num_seqs, other.max_num_seqs), min(self.max_num_batched_tokens, other.max_num_batched_tokens)
        )

    def at_least(self, other: Limits) -> Limits:
        """The larger of both, knob by knob."""
        return Limits(
            max(self.max_num_seqs, other.max_num_seqs), max(self.max_num_batched_tokens, other.max_num_batched_tokens)
        )


DEFAULT_LIMITS = Limits(256, 8192)
"""Capacities of an engine on a GPU, unless it is started with others."""

DEFAULT_BATCHED_TOKENS_CPU = 2048
"""`max_num_batched_tokens` of an engine on a CPU, which computes so many tokens in seconds, as vLLM's there."""

HIGHEST_LIMITS = Limits(65_536, 1_048_576)
"""Highest capacities, bounds of tuning and overrides that the InferenceService accepts; the lowest are 1."""


@dataclass(frozen=True, slots=True)
class PartialLimits:
    """A change of limits. None keeps a limit."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None

    def over(self, limits: Limits) -> Limits:
        """`limits` with the values that are set."""
        return Limits(
            limits.max_num_seqs if self.max_num_seqs is None else self.max_num_seqs,
            limits.max_num_batched_tokens if self.max_num_batched_tokens is None else self.max_num_batched_tokens,
        )


@dataclass(frozen=True, slots=True)
class LimitsInForce:
    """Limits that engines run with.

    Attributes:
        revision: number of the change that set them. Engines reject a change with a smaller one.
    """

    limits: Limits
    revision: int = 0


@dataclass(frozen=True, slots=True)
class LimitsBounds:
    """The smallest and largest value of each limit, both allowed."""

    low: Limits
    high: Limits

    def clamp(self, limits: Limits) -> Limits:
        return limits.at_least(self.low).at_most(self.high)

    def up_to(self, limits: Limits) -> LimitsBounds:
        """These bounds, capped at `limits`."""
        return LimitsBounds(self.low.at_most(limits), self.high.at_most(limits))

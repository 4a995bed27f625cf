"""The two limits that change while an engine runs: the pair, the pair in force, the last attempt to set it, bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Knob = Literal["max_num_seqs", "max_num_batched_tokens"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an engine's scheduler, named as in `/v1/runtime_config`.

    Attributes:
        max_num_seqs: maximum concurrent requests of an engine.
        max_num_batched_tokens: maximum tokens of one step.
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


@dataclass(frozen=True, slots=True)
class LimitsInForce:
    """Limits that engines run with.

    Attributes:
        limits: the pair.
        revision: number of the change that set them; an engine refuses older ones.
    """

    limits: Limits
    revision: int


@dataclass(frozen=True, slots=True)
class Telling:
    """Result of sending limits to one engine.

    Attributes:
        taken: the last accepted limits; None before the first.
        at: when, on the steady clock.
        complaint: why it did not accept the last ones; empty if it did.
        again: time of the next attempt after a failure, on the steady clock.
    """

    taken: LimitsInForce | None = None
    at: float = float("-inf")
    complaint: str = ""
    again: float = float("-inf")


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

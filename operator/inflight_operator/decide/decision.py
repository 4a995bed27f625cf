"""Decisions as data: what changes from what to what, and the numbers that were seen. `sentences` puts them in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from inflight_operator.limits import Knob

Kind = Literal["Scaling", "Tuning"]
AnyKnob = Knob | Literal["replicas"]
Number = float | int | str
"""A measurement, or a name that belongs to it. Durations are in seconds, shares from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is decided, or left as it is.

    Attributes:
        code: CamelCase, for conditions and metrics.
        numbers: what was seen, by the names that the sentence of `code` uses.
        held: what kept the decision from going further: a window, a rate limit, a bound.
    """

    code: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    held: Reason | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """One change of one knob.

    Attributes:
        applied: False for advice (`tuning.mode: Recommend`).
    """

    kind: Kind
    knob: AnyKnob
    frm: int
    to: int
    reason: Reason
    applied: bool = True

"""Decisions as data: the old and new value of a knob, and the observed numbers. `sentences` renders them as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from inflight_settings.limits import Knob

Kind = Literal["Scaling", "Tuning"]
AnyKnob = Knob | Literal["replicas"]
Number = float | int | str
"""A measurement, or a name that belongs to it. Durations are in seconds, shares from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason of a decision, or of no change.

    Attributes:
        code: CamelCase, for conditions and metrics.
        numbers: observations, by the names that the sentence of `code` uses.
        held: the window, rate limit or bound that limited the decision.
    """

    code: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    held: Reason | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Change of the number of replicas or of one limit.

    Attributes:
        applied: False for advice (`tuning.mode: Recommend`).
    """

    kind: Kind
    knob: AnyKnob
    frm: int
    to: int
    reason: Reason
    applied: bool = True

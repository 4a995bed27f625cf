"""Colours that mean the same thing on every dashboard, and thresholds."""

from __future__ import annotations

from collections.abc import Sequence

GOOD, WARNING, BAD, NEUTRAL = "green", "orange", "red", "text"
TARGET = "red"
"""Lines of targets and hard bounds; dashed."""

MEASURED = "text"
"""A measurement beside what was predicted of it."""

MEDIAN, P95, P99 = "light-blue", "blue", "purple"
PERCENTILES = {0.5: MEDIAN, 0.95: P95, 0.99: P99}
PROMPT, OUTPUT = "purple", "blue"
"""Prompt tokens and prefill; output tokens and decode."""

RUNNING, WAITING, HELD = "blue", "orange", "yellow"
READY, ORDERED, WANTED, BLOCKED = "green", "blue", "purple", "red"
IN_FORCE, MODELLED = "blue", "purple"

STATES = {
    "Serving": GOOD,
    "ScaledToZero": "blue",
    "Starting": "yellow",
    "Scheduling": "yellow",
    "Loading": "yellow",
    "NotRouted": "yellow",
}
"""Reasons of the condition Ready that need no intervention; all others are faults."""

FEW_PER_SECOND = 0.1
"""End of the axis for rates of rare events. Without it, a rate that is always 0 has an axis from 0 to 100."""

Steps = Sequence[tuple[float | None, str]]
"""Colour from a value on; None: from the beginning."""

IN_TARGET: Steps = ((None, BAD), (0.95, WARNING), (0.97, GOOD))
"""Targets are 95th percentiles."""
OF_TARGET: Steps = ((None, GOOD), (0.8, WARNING), (1.0, BAD))
"""A latency over its target."""
FAULTS: Steps = ((None, GOOD), (1, BAD))
KV_USE: Steps = ((None, GOOD), (0.8, WARNING), (0.9, BAD))
PLAIN: Steps = ((None, NEUTRAL),)

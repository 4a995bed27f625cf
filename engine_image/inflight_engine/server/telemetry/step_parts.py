"""Metrics of the parts of steps: work computed, and predicted time."""

from __future__ import annotations

from inflight_cost.model import CostModel, StepWork
from inflight_engine.server.telemetry.families import Families

TERMS = {
    "step": "base_s",
    "decode_sequence": "decode_seq_s",
    "prefill_token": "prefill_token_s",
    "decode_kv_token": "decode_kv_token_s",
    "prefill_context_token": "prefill_context_token_s",
    "copied_token": "copied_token_s",
}
"""Label `term`: field of `CostModel`. After the first, in the order of the fields of `StepWork`."""

CURVE = "curve"
"""The term of the predicted seconds that `CostModel.curve` adds."""


class StepParts:
    """Sums over all steps, by term.

    Attributes:
        work: steps, and each number of `StepWork`.
        predicted_s: seconds by the cost model in force at each step; steps before the first fit add nothing.
    """

    def __init__(self) -> None:
        self.work = dict.fromkeys(TERMS, 0.0)
        self.predicted_s = dict.fromkeys((*TERMS, CURVE), 0.0)

    def count(self, work: StepWork, cost: CostModel | None) -> None:
        """Adds one step."""
        for (term, field), amount in zip(TERMS.items(), (1, *work), strict=True):
            self.work[term] += amount
            if cost is not None:
                self.predicted_s[term] += getattr(cost, field) * amount
        if cost is not None:
            self.predicted_s[CURVE] += cost.on_curve(work.decode_seqs + work.prefill_tokens)


def step_part_families(page: Families, parts: StepParts) -> None:
    """Add the families of parts of steps."""
    page.counters(
        "inflight_step_work",
        "Work of steps, by term of the step cost; term=step counts the steps.",
        ("term",),
        [((term,), amount) for term, amount in parts.work.items()],
    )
    page.counters(
        "inflight_step_predicted_seconds",
        "Predicted seconds of steps by the step cost in force, by term; term=curve is its nonlinear part.",
        ("term",),
        [((term,), seconds) for term, seconds in parts.predicted_s.items()],
    )

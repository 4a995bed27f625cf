"""A step plan as a line of the recording: the recorder writes it, the replay compares its own plan with it."""

from __future__ import annotations

import numpy as np

from inflight_engine.recording.lines import Chunk, Ended, Preempted, Started, Step
from inflight_engine.request import Request
from inflight_engine.scheduling.plan import Slots, StepPlan

_NO_SLOTS: Slots = np.empty(0, np.intp)


class Decisions:
    """Follows the plans of one scheduler, in order.

    Attributes:
        decode_slots: of the last plan, the same array object: its identity marks a steady step.
        decoding: bool [max_num_seqs]: the same as a mask.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self.decode_slots = _NO_SLOTS
        self.decoding = np.zeros(max_num_seqs, np.bool_)

    def reset(self) -> None:
        self.decode_slots = _NO_SLOTS
        self.decoding = np.zeros_like(self.decoding)

    def of(self, plan: StepPlan, micros: int, ended: list[Ended] | None, *, ahead: bool) -> Step:
        """The plan as a line."""
        return Step(
            step=plan.step,
            micros=micros,
            releases=list(plan.releases),
            preemptions=[Preempted(each.request_id, each.slot, each.swapped) for each in plan.preemptions],
            starts=[
                Started(each.request_id, each.slot, each.num_computed_tokens, bool(each.host_block_ids))
                for each in plan.starts
            ],
            chunks=[Chunk(each.slot, each.start, each.length) for each in plan.prefills],
            decodes=self._joined_or_left(plan.decode_slots),
            num_tokens=plan.num_tokens,
            ended=ended,
            ahead=ahead,
        )

    def repeats(self, plan: StepPlan) -> bool:
        """Nothing changed since the plan before, but the lengths. In the order in which it is likeliest to be false."""
        return (
            plan.decode_slots is self.decode_slots
            and not plan.prefills
            and not plan.releases
            and not plan.starts
            and not plan.preemptions
        )

    def _joined_or_left(self, decode_slots: Slots) -> list[int]:
        if decode_slots is self.decode_slots:
            return []
        decoding = np.zeros_like(self.decoding)
        decoding[decode_slots] = True
        changed = np.flatnonzero(decoding != self.decoding)
        self.decode_slots, self.decoding = decode_slots, decoding
        return [int(slot) for slot in changed]


def ended_lines(requests: list[Request]) -> list[Ended]:
    """Requests that have a finish reason, as a line has them."""
    return [Ended(request.request_id, request.finish_reason) for request in requests if request.finish_reason]

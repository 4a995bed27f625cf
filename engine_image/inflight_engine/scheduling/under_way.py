"""Plans on their way: made, but their tokens are not taken in yet."""

from __future__ import annotations

from collections.abc import Set

from inflight_engine.request import TokenIds
from inflight_engine.scheduling.plan import PrefillChunk, StepPlan
from inflight_engine.scheduling.running import Running

_NOBODY: Set[int] = frozenset()


class PlansUnderWay:
    """At most two plans, and who left them since they were made.

    What a plan does to lengths and chunks is counted as soon as something is planned after it, or else when its tokens
    come. A plan that is counted before its tokens are known ends nobody: who reaches the full length with it decodes no
    more, and keeps slot and blocks until the last token is there.

    Attributes:
        newest: the last plan, not counted yet: nothing is planned after it.
        counted: the plan that is counted without its tokens: what is planned now is planned ahead of them.
    """

    def __init__(self, running: Running) -> None:
        self.newest: StepPlan | None = None
        self.counted: StepPlan | None = None
        self._running = running
        self._full: list[int] = []
        """Slots that reach their length with `counted`."""
        self._left: dict[int, set[int]] = {}
        """By the step of a plan: slots whose request left since it was made."""

    def count_ahead(self, plan: StepPlan) -> bool:
        """Count the newest plan, as another is planned after it. True: more than lengths has changed."""
        if self.counted is not None:
            raise AssertionError(f"step {self.counted.step} has to be taken in before another step is planned")
        self.counted, self.newest = plan, None
        self._full = self._count(plan)
        for slot in self._full:
            self._running.end_decoding(slot)
        return bool(self._full or plan.prefills)

    def take_in(self, plan: StepPlan, token_ids: TokenIds) -> tuple[list[int], Set[int]]:
        """Hand out the tokens of the older plan (int32, in its order).

        Returns:
            The slots that are complete with them, and those whose tokens went to nobody.
        """
        decodes, ahead = self._running.decodes, self.counted is not None
        if ahead:
            full, self.counted = self._full, None
        else:
            full, self.newest = self._count(plan) if plan.prefills else decodes.advance(), None
        left = self._left.pop(plan.step, _NOBODY) if self._left else _NOBODY
        if plan.prefills:
            num_decodes = len(plan.decode_slots)
            decodes.fill(token_ids[:num_decodes])
            self._end_chunks(plan.prefills, token_ids[num_decodes:], left)
        else:
            decodes.fill(token_ids)
        if ahead and full:
            full = self._take_last_tokens(plan, full, left)
        return full, left

    def drop(self, plan: StepPlan) -> list[tuple[StepPlan, Set[int]]]:
        """Forget this plan and what was made after it, which give no tokens.

        Returns:
            Those plans, each with the slots that were left since; none where the plan fell with an earlier one.
        """
        plans = [each for each in (self.counted, self.newest) if each is not None]
        if all(each.step != plan.step for each in plans):
            return []
        if plan.step != plans[0].step:
            raise AssertionError(f"step {plan.step} cannot fail before step {plans[0].step} is taken in")
        dropped = [(each, self.left_since(each)) for each in plans]
        self.newest = self.counted = None
        self._left.clear()
        return dropped

    def leave(self, slot: int) -> None:
        """A slot's request ends: what plans that were made before sample for it goes to nobody."""
        for plan in (self.counted, self.newest):
            if plan is not None:
                self._left.setdefault(plan.step, set()).add(slot)

    def left_since(self, plan: StepPlan) -> Set[int]:
        """Slots whose requests ended since the plan was made."""
        return self._left.get(plan.step, _NOBODY)

    def _count(self, plan: StepPlan) -> list[int]:
        """The plan is computed before whatever is planned from now on. Returns the slots that are complete with it."""
        running = self._running
        full = running.decodes.advance()
        if plan.prefills:
            left = self.left_since(plan)
            full += [chunk.slot for chunk in plan.prefills if chunk.slot not in left and running.count_chunk(chunk)]
        return full

    def _end_chunks(self, chunks: tuple[PrefillChunk, ...], sampled: TokenIds, left: Set[int]) -> None:
        tokens = iter(sampled.tolist())
        for chunk in chunks:
            token_id = next(tokens) if chunk.samples else -1
            if chunk.slot not in left:
                self._running.end_chunk(chunk, token_id)

    def _take_last_tokens(self, plan: StepPlan, full: list[int], left: Set[int]) -> list[int]:
        """Complete the requests that ended ahead; returns their slots."""
        full = [slot for slot in full if slot not in left]
        sampling_chunks = {chunk.slot for chunk in plan.prefills if chunk.samples}
        for slot in full:
            if slot not in sampling_chunks:
                self._running.take_last_token(slot)
        return full

"""Plans in flight: made, but their tokens are not taken in yet."""

from __future__ import annotations

from collections.abc import Set

from inflight_engine.cache.offload import Offload
from inflight_engine.request import TokenIds
from inflight_engine.scheduling.plan import PrefillChunk, StepPlan
from inflight_engine.scheduling.running import Running

_NO_SLOTS: Set[int] = frozenset()


class PlansInFlight:
    """At most two plans, the slots whose tokens of them are discarded, and the blocks that they make findable.

    A plan is counted, which is what it does to lengths and chunks, as soon as another is planned after it, or else when
    its tokens come. A plan that is counted before its tokens are known does not finish requests: those at full length
    stop decoding, and keep slot and blocks until their last token is there.

    Attributes:
        newest: the last plan, not counted yet: nothing is planned after it.
        counted: the plan that is counted without its tokens: what is planned now is planned ahead of them.
    """

    def __init__(self, running: Running, offload: Offload) -> None:
        self.newest: StepPlan | None = None
        self.counted: StepPlan | None = None
        self._running = running
        self._offload = offload
        self._full: list[int] = []
        """Slots that reach their length with `counted`."""
        self._discarded: dict[int, set[int]] = {}
        """Slots, by the step of a plan, whose request finished since it was made."""
        self._registered: dict[int, list[int]] = {}
        """Blocks, by the step of a plan, that can be found since it was made."""

    def add(self, plan: StepPlan, registered: list[int]) -> None:
        """Add a plan that was made; `registered`: the blocks that it makes findable."""
        self.newest = plan
        if registered:
            self._registered[plan.step] = registered

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
            The slots that are complete with them, and those whose tokens are discarded.
        """
        decodes, ahead = self._running.decodes, self.counted is not None
        if ahead:
            full, self.counted = self._full, None
        else:
            full, self.newest = self._count(plan) if plan.prefills else decodes.advance(), None
        discarded = _NO_SLOTS
        if self._discarded:
            discarded = self.discarded(plan)
            self._discarded.pop(plan.step, None)
        if self._registered:
            self._registered.pop(plan.step, None)
        self._offload.take_in(plan.step)
        if plan.prefills:
            num_decodes = len(plan.decode_slots)
            decodes.fill(token_ids[:num_decodes])
            self._end_chunks(plan.prefills, token_ids[num_decodes:], discarded)
        else:
            decodes.fill(token_ids)
        if ahead and full:
            full = [slot for slot in full if slot not in discarded]
            for slot in full:
                self._running.take_last_token(slot)
        return full, discarded

    def drop(self, plan: StepPlan) -> list[tuple[StepPlan, Set[int]]]:
        """Forget this plan and the one made after it, which give no tokens, and the content of the blocks that they
        were to compute: only requests of these plans found it.

        Returns:
            Those plans, each with the slots whose tokens are discarded; none where the plan fell with an earlier one.
        """
        plans = self._plans()
        if all(each.step != plan.step for each in plans):
            return []
        if plan.step != plans[0].step:
            raise AssertionError(f"step {plan.step} cannot fail before step {plans[0].step} is taken in")
        dropped = [(each, self.discarded(each)) for each in plans]
        self._forget_blocks()
        self.newest = self.counted = None
        self._discarded.clear()
        return dropped

    def misled(self) -> list[int]:
        """A chunk of a plan in flight was not computed: forget the content of all blocks that the plans were to
        compute.

        Returns:
            The slots that started with such blocks: what these plans compute for them may be wrong.
        """
        lost, block_size = self._forget_blocks(), self._running.pool.block_size
        return [
            start.slot
            for plan in self._plans()
            for start in plan.starts
            if start.slot not in self.discarded(plan)
            and not lost.isdisjoint(start.block_ids[: start.num_computed_tokens // block_size].tolist())
        ]

    def discard(self, slot: int) -> None:
        """A slot's request finishes: the tokens that plans in flight sample for it are discarded."""
        for plan in (self.counted, self.newest):
            if plan is not None:
                self._discarded.setdefault(plan.step, set()).add(slot)

    def discarded(self, plan: StepPlan) -> Set[int]:
        """Slots whose requests finished since the plan was made."""
        return self._discarded.get(plan.step, _NO_SLOTS)

    def _forget_blocks(self) -> set[int]:
        """Unregister the blocks that plans in flight made findable, and forget what they copy out; returns these
        blocks."""
        blocks = {block for registered in self._registered.values() for block in registered}
        self._running.pool.unregister(sorted(blocks))
        self._registered.clear()
        self._offload.forget()
        return blocks

    def _plans(self) -> list[StepPlan]:
        """Older first."""
        return [each for each in (self.counted, self.newest) if each is not None]

    def _count(self, plan: StepPlan) -> list[int]:
        """Count a plan: it is computed before whatever is planned from now on. Returns the slots that are complete."""
        running = self._running
        full = running.decodes.advance()
        if plan.prefills:
            discarded = self.discarded(plan)
            chunks = [chunk for chunk in plan.prefills if chunk.slot not in discarded]
            full += [chunk.slot for chunk in chunks if running.count_chunk(chunk)]
        return full

    def _end_chunks(self, chunks: tuple[PrefillChunk, ...], sampled: TokenIds, discarded: Set[int]) -> None:
        tokens = iter(sampled.tolist())
        for chunk in chunks:
            token_id = next(tokens) if chunk.samples else -1
            if chunk.slot not in discarded:
                self._running.end_chunk(chunk, token_id)

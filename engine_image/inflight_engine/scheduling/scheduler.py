"""One iteration's decision: who computes how many tokens (continuous batching, Orca, Yu et al. 2022; chunked prefill
mixed with decodes, Sarathi-Serve, Agrawal et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inflight_engine.cache.block_pool import BlockPool
from inflight_engine.request import FinishReason, Request, RequestState, TokenIds
from inflight_engine.scheduling.limits import Limits
from inflight_engine.scheduling.plan import BlockGrant, PrefillChunk, Slots, SlotStart, StepPlan
from inflight_engine.scheduling.queue import WaitingQueue
from inflight_engine.scheduling.slots import SlotTable


class CannotFitError(ValueError):
    """The request could never run: its tokens exceed the context or the whole KV cache."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What the scheduler knows of the machine.

    Attributes:
        capacity: what the live limits may reach; the slot table has `capacity.max_num_seqs` rows.
        num_blocks, block_size: the KV cache.
        max_model_len: longest request, prompt plus output, in tokens.
        kv_headroom: share of the blocks that admission leaves free for growth, unless nothing else runs.
    """

    capacity: Limits
    num_blocks: int
    block_size: int
    max_model_len: int
    kv_headroom: float = 0.0


class Scheduler:
    """Decides from numbers, never from tensors; it has no clock and does no I/O.

    The caller alternates `schedule` and `update`; `add`, `cancel` and `limits` come between the two pairs. Equal
    calls give equal plans.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.limits = config.capacity
        self.pool = BlockPool(config.num_blocks, config.block_size)
        self.slots = SlotTable(config.capacity.max_num_seqs, config.max_model_len)
        self.waiting = WaitingQueue()
        self.num_preemptions = 0
        self.num_uncomputed_tokens = 0
        """Prompt tokens (and lost tokens of preempted requests) still to be computed, waiting or in prefill."""
        self._requests: dict[int, Request] = {}
        self._prefilling: list[int] = []
        self._releases: list[int] = []
        self._next_order = 0
        self._next_step = 0
        self._headroom_blocks = int(config.kv_headroom * config.num_blocks)

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    @property
    def num_running(self) -> int:
        return self.slots.num_running

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    def add(self, request: Request) -> None:
        """Queue a new request.

        Raises:
            CannotFitError: it is longer than `max_model_len` or than the whole KV cache.
            ValueError: it has no prompt, or its id is in use.
        """
        longest = min(self.config.max_model_len, self.config.num_blocks * self.config.block_size)
        if request.max_total_tokens > longest:
            raise CannotFitError(
                f"{request.num_prompt_tokens} prompt tokens and {request.sampling.max_tokens} output tokens "
                f"do not fit in {longest} tokens"
            )
        if request.num_prompt_tokens == 0 or request.sampling.max_tokens < 1:
            raise ValueError("a request needs at least one prompt token and max_tokens of at least 1")
        if request.request_id in self._requests:
            raise ValueError(f"request id {request.request_id} is in use")
        request.order = self._next_order
        self._next_order += 1
        self._requests[request.request_id] = request
        self.num_uncomputed_tokens += request.num_prompt_tokens
        self.waiting.push(request)

    def cancel(self, request_id: int, reason: FinishReason) -> bool:
        """End a request wherever it is; its slot and blocks are free for the next step. False: no such request."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._finish(request, reason)
        return True

    def schedule(self) -> StepPlan | None:
        """The next step, or None when nothing is left to run. Every running decode the budget allows goes first,
        oldest first; then prefills under way; then admissions in order of arrival."""
        if not self._requests:
            return None
        preemptions_before = self.num_preemptions
        grants: list[BlockGrant] = []
        decode_slots = self._grow_decodes(self._decodes_within_budget(), grants)
        budget = self.limits.max_num_batched_tokens - len(decode_slots)
        chunks: list[PrefillChunk] = []
        for slot in self._prefilling:
            if budget == 0:
                break
            budget -= self._add_chunk(slot, budget, chunks)
        # A step that had to preempt admits nobody: the victim would bounce straight back.
        starts = [] if self.num_preemptions > preemptions_before else self._admit(budget, grants, chunks)
        releases, self._releases = tuple(self._releases), []
        plan = StepPlan(
            step=self._next_step,
            releases=releases,
            starts=tuple(starts),
            grants=tuple(grants),
            prefills=tuple(chunks),
            decode_slots=decode_slots,
            num_tokens=len(decode_slots) + sum(chunk.length for chunk in chunks),
        )
        self._next_step += 1
        return plan

    def update(self, plan: StepPlan, token_ids: TokenIds) -> list[Request]:
        """Take in a step's sampled tokens (int32, in the plan's order); returns the requests that ended with it."""
        for chunk in plan.prefills:
            self.slots.num_computed[chunk.slot] = chunk.start + chunk.length
            self.num_uncomputed_tokens -= chunk.length
            if chunk.samples:
                self._prefilling.remove(chunk.slot)
                self.slots.start_decoding(chunk.slot)
        stopped, full = self.slots.append_tokens(plan.sampled_slots, token_ids)
        finished: list[Request] = []
        for slots, reason in ((stopped, FinishReason.STOP), (full, FinishReason.LENGTH)):
            for slot in slots:
                request = self._request_in(int(slot))
                self._finish(request, reason)
                finished.append(request)
        return finished

    def requests_in(self, plan: StepPlan) -> list[Request]:
        """The requests that compute something in the plan."""
        slots = [*plan.decode_slots.tolist(), *(chunk.slot for chunk in plan.prefills)]
        return [self._request_in(slot) for slot in slots]

    def _decodes_within_budget(self) -> Slots:
        decode_slots = self.slots.decode_slots
        budget = self.limits.max_num_batched_tokens
        if len(decode_slots) <= budget:
            return decode_slots
        oldest = np.argsort(self.slots.order[decode_slots], kind="stable")[:budget]
        return np.sort(decode_slots[oldest])

    def _grow_decodes(self, decode_slots: Slots, grants: list[BlockGrant]) -> Slots:
        """Give each decode that crosses a block boundary its next block, preempting the last arrived where none is
        free. Returns the decodes that are left."""
        table = self.slots
        growing = decode_slots[table.num_tokens[decode_slots] > table.num_blocks[decode_slots] * self.pool.block_size]
        preempted: list[int] = []
        for slot in growing[np.argsort(table.order[growing], kind="stable")].tolist():
            while self.pool.num_free == 0 and slot not in preempted:
                victim = table.last_arrived()
                self._preempt(victim)
                preempted.append(victim)
            if slot not in preempted:
                blocks = self.pool.allocate(1)
                grants.append(BlockGrant(slot, table.append_blocks(slot, blocks), blocks))
        if not preempted:
            return decode_slots
        return decode_slots[~np.isin(decode_slots, preempted)]

    def _admit(self, budget: int, grants: list[BlockGrant], chunks: list[PrefillChunk]) -> list[SlotStart]:
        starts: list[SlotStart] = []
        while budget > 0 and self.num_running < self.limits.max_num_seqs and self.slots.has_free:
            request = self.waiting.head()
            if request is None:
                break
            num_tokens = request.num_prompt_tokens + len(request.output_token_ids)
            num_blocks = self.pool.blocks_for(num_tokens)
            headroom = self._headroom_blocks if self.num_running else 0
            if num_blocks + headroom > self.pool.num_free:
                break
            self.waiting.pop()
            slot = self.slots.take(request)
            request.state, request.slot = RequestState.RUNNING, slot
            request.output_token_ids = request.output_token_ids[:0]
            blocks = self.pool.allocate(num_blocks)
            grants.append(BlockGrant(slot, self.slots.append_blocks(slot, blocks), blocks))
            starts.append(
                SlotStart(
                    slot, request.request_id, self.slots.tokens_of(slot), request.num_prompt_tokens, request.sampling
                )
            )
            self._prefilling.append(slot)
            budget -= self._add_chunk(slot, budget, chunks)
        return starts

    def _add_chunk(self, slot: int, budget: int, chunks: list[PrefillChunk]) -> int:
        start = int(self.slots.num_computed[slot])
        remaining = int(self.slots.num_tokens[slot]) - start
        length = min(remaining, budget)
        chunks.append(PrefillChunk(slot, start, length, samples=length == remaining))
        return length

    def _preempt(self, slot: int) -> None:
        """Take the slot and blocks away; the tokens are kept and recomputed later."""
        request = self._request_in(slot)
        request.output_token_ids = self.slots.tokens_of(slot)[request.num_prompt_tokens :]
        self.num_uncomputed_tokens += self._computed_of(slot)
        self._release(slot)
        request.state, request.slot = RequestState.PREEMPTED, -1
        self.num_preemptions += 1
        self.waiting.push(request)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if request.slot < 0:
            self.num_uncomputed_tokens -= request.num_prompt_tokens + len(request.output_token_ids)
            self.waiting.remove(request)
        else:
            if not self.slots.is_decoding(request.slot):
                self.num_uncomputed_tokens -= int(self.slots.num_tokens[request.slot]) - self._computed_of(request.slot)
            self._release(request.slot)
            request.slot = -1
        request.state, request.finish_reason = RequestState.FINISHED, reason
        del self._requests[request.request_id]

    def _computed_of(self, slot: int) -> int:
        """Tokens that a preemption would have to compute again. A decoding slot's last token counts with them: it
        becomes part of the prefill that resumes the request."""
        table = self.slots
        return int(table.num_tokens[slot] if table.is_decoding(slot) else table.num_computed[slot])

    def _release(self, slot: int) -> None:
        if not self.slots.is_decoding(slot):
            self._prefilling.remove(slot)
        self.pool.free(self.slots.release(slot))
        self._releases.append(slot)

    def _request_in(self, slot: int) -> Request:
        request = self.slots.requests[slot]
        if request is None:
            raise AssertionError(f"slot {slot} is empty")
        return request

"""Admission: requests move from the queues to slots while limits, token budget and free KV blocks allow it."""

from __future__ import annotations

import math

import numpy as np

from inflight_engine.cache.block_pool import BlockIds
from inflight_engine.request import Request, RequestState
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.plan import PrefillChunk, SlotStart
from inflight_engine.scheduling.preemption import Preemptor
from inflight_engine.scheduling.queues import WaitingQueues
from inflight_engine.scheduling.running import Running, all_tokens

NEVER = -1
"""So few blocks are never free."""

_NO_BLOCKS: BlockIds = np.empty(0, np.int32)


class Admission:
    """Starts waiting requests, and remembers which of them do not fit, so that a step in which nothing changes need not
    try them again.

    Attributes:
        headroom_blocks: free blocks that admission leaves for growth while something runs.
        blocked: the queues' head that does not fit until something changes; as decodes go on, or time, another may take
            its place.
        pass_at: at so few free blocks the request behind `blocked` may pass it: its tenant holds too many until others
            have grown.
        last_change: `now` of the last `schedule` at which time made a difference to the order of waiting requests.
            Calls with any later `now` before the next such one decide as calls with this one would.
        prefix_queries, prefix_hits: prompt tokens of admitted requests, and how many of them were in the prefix cache.
    """

    def __init__(self, config: SchedulerConfig, queues: WaitingQueues, running: Running, preemptor: Preemptor) -> None:
        self.headroom_blocks = int(config.kv_headroom * config.num_blocks)
        self.blocked: Request | None = None
        self.pass_at = NEVER
        self.last_change = -math.inf
        self.prefix_queries = self.prefix_hits = 0
        self._behind: Request | None = None
        """The new request that waits behind `blocked`; it too may become another."""
        self._prefix_caching = config.prefix_caching
        self._queues = queues
        self._running = running
        self._preemptor = preemptor

    def head_moved(self, now: float) -> bool:
        """Tell whether another request than `blocked` is the queues' head, or another waits behind it."""
        if self.blocked is None:
            return False
        self._pass_time(now)
        queues, clock = self._queues, self._running.decodes.clock
        return queues.head(clock) is not self.blocked or queues.behind(clock) is not self._behind

    def forget_blocked(self) -> None:
        """Try all requests again: something has changed."""
        self.blocked = self._behind = None
        self.pass_at = NEVER

    def admit(self, max_num_seqs: int, budget: int, now: float) -> tuple[list[SlotStart], list[PrefillChunk]]:
        """Start requests with their first chunks. `budget`: tokens that are left of the step's."""
        starts: list[SlotStart] = []
        chunks: list[PrefillChunk] = []
        self._pass_time(now)
        running, table, clock = self._running, self._running.table, self._running.decodes.clock
        while budget > 0 and table.num_running < max_num_seqs and table.has_free:
            request = self._queues.head(clock)
            if request is None:
                break
            start = self.start(request)
            if start is None:
                self.blocked = request
                start = self.start_behind(request)
                if start is None:
                    break
            starts.append(start)
            chunks.append(running.plan_chunk(start.slot, budget))
            budget -= chunks[-1].length
        return starts, chunks

    def start_behind(self, head: Request) -> SlotStart | None:
        """Move a new request past the queues' head to a slot, where the head resumes, its blocks do not fit now, and
        its tenant holds, in the head's class, no fewer blocks than that of the new one then will in all. Else a tenant
        that fills the cache would hold up all others.

        The head does not starve: while it waits no request of its tenant and class starts, and once none of them runs
        no request passes it. What its tenant runs in other classes does not count: more of that may start all the time.
        """
        running = self._running
        request = self._behind = self._queues.behind(running.decodes.clock)
        self.pass_at = NEVER
        if request is None or request.scheduling.tenant == head.scheduling.tenant:
            return None
        most = running.blocks_of(head.scheduling.tenant, head.scheduling.service_class)
        excess = running.blocks_of(request.scheduling.tenant) + running.pool.blocks_for(request.num_tokens) - most
        if excess > 0:
            # Until something changes decodes take blocks and give none back: each makes up for one at most.
            self.pass_at = max(NEVER, running.pool.num_free - excess)
            return None
        return self.start(request, behind=True)

    def start(self, request: Request, *, behind: bool = False) -> SlotStart | None:
        """Move the queues' head, or the request `behind` it, to a slot; None: its blocks do not fit now."""
        pool, num_tokens, swapped = self._running.pool, request.num_tokens, request.state is RequestState.SWAPPED
        # At least one token has to be computed, for its logits.
        hashes = [] if swapped else request.block_hashes[: (num_tokens - 1) // pool.block_size]
        shared = pool.match(hashes) if hashes else _NO_BLOCKS
        num_new = pool.blocks_for(num_tokens) - len(shared)
        num_taken = num_new + (pool.num_unowned(shared) if len(shared) else 0)
        headroom = self.headroom_blocks if self._running.table.num_running else 0
        if num_taken + headroom > pool.num_free:
            return None
        if len(shared):
            pool.share(shared)
            block_ids = np.concatenate([shared, pool.allocate(num_new)])
        else:
            block_ids = pool.allocate(num_new)
        computed = request.num_computed_tokens if swapped else len(shared) * pool.block_size
        if self._prefix_caching and request.state is RequestState.WAITING:
            self.prefix_queries += request.num_prompt_tokens
            self.prefix_hits += computed
        host_block_ids = request.host_block_ids
        clock = self._running.decodes.clock
        self._queues.pop(clock, behind=behind)
        self._queues.admitted(request, num_tokens - computed, clock)
        self._preemptor.free_host_blocks(request)
        self._running.start(request, block_ids, computed, len(shared))
        request.state = RequestState.RUNNING
        return SlotStart(
            slot=request.slot,
            request_id=request.request_id,
            token_ids=all_tokens(request),
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=computed,
            sampling=request.sampling,
            block_ids=block_ids,
            host_block_ids=host_block_ids,
        )

    def _pass_time(self, now: float) -> None:
        if self._queues.pass_time(now):
            self.last_change = now

"""Admission: requests move from the queues to slots while limits, token budget and free KV blocks allow it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from inflight_engine.cache.block_pool import BlockIds
from inflight_engine.cache.offload import Offload
from inflight_engine.request import Request, RequestState
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.plan import PrefillChunk, SlotStart
from inflight_engine.scheduling.queues import WaitingQueues
from inflight_engine.scheduling.running import Running

NEVER = -1
"""So few blocks are never free."""

_NO_BLOCKS: BlockIds = np.empty(0, np.int32)


STARTED_BLOCKS = 32_768
"""Blocks of the requests that start in a step, but for the last one: to find and share a block that is cached takes
0.2 us, so without a bound a hundred requests whose long prompts are cached would hold up the step by as many ms."""

PASSING_SECONDS = 10.0
"""While others may take what was free when a request came to wait for blocks, unless their class has more weight."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """State in which a request was the queues' head and did not fit, for the first time since it waits.

    Attributes:
        since: the time.
        room: blocks that were free. Others start in these; all that comes free is the request's.
        num_starts: requests that had started.
    """

    since: float
    room: int
    num_starts: int


class Admission:
    """Starts waiting requests, and remembers which of them do not fit, so that a step in which nothing changes need not
    try them again.

    The queues' head is always tried first: whoever the policy names. Where it does not fit, those that `beside` names
    are tried, and start if either

    - the head could not start anyway: those that run, but for requests whose prompts alone leave it no room, hold no
      more than it leaves of the cache. So it starts when the large ones that it waits for have ended, or
    - all that started since the head did not fit hold no more than what was free then, so it keeps what comes free.
      This ends after `PASSING_SECONDS`, for a class of so many times the weight after so many times as long.

    So a head that stays the head starts at most that long, and two of the longest answers, after it did not fit. The
    second of these is for requests that passed it and grew, and only where it waits for large ones.

    Attributes:
        headroom_blocks: free blocks that admission leaves for growth while something runs.
        blocked: the head and those beside it, none of which may start until something changes; as decodes go on, or
            time, others may come to be these. Empty: not tried.
        pass_at: at so few free blocks the second of a class may pass a head that resumes: its tenant holds too many
            until others have grown.
        last_change: `now` of the last `schedule` at which time made a difference to what may start.
            Calls with any later `now` before the next such one decide as calls with this one would.
        prefix_queries, prefix_hits: prompt tokens of admitted requests, and how many of them were in the prefix cache
            or the tier behind it.
    """

    def __init__(self, config: SchedulerConfig, queues: WaitingQueues, running: Running, offload: Offload) -> None:
        self.headroom_blocks = int(config.kv_headroom * config.num_blocks)
        self.blocked: list[Request] = []
        self.pass_at = NEVER
        self.last_change = -math.inf
        self.prefix_queries = self.prefix_hits = 0
        self._blocked_until: float = NEVER
        """Clock up to which no other request than `blocked` comes to be next by decodes alone."""
        self._refusals: dict[Request, Refusal] = {}
        self._prefix_caching = config.prefix_caching
        self._queues = queues
        self._running = running
        self._offload = offload

    def head_moved(self, now: float) -> bool:
        """Tell whether another request than those that do not fit has come to be next."""
        if not self.blocked or self._queues.order_stays:
            return False
        clock = self._running.decodes.clock
        if not self._pass_time(now) and clock <= self._blocked_until:
            return False
        head = self._queues.head(clock)
        if head is not self.blocked[0]:
            return True
        beside, self._blocked_until = self._queues.beside(head, clock)
        return beside != self.blocked[1:]

    def forget_blocked(self) -> None:
        """Try all requests again: something has changed."""
        self.blocked = []
        self.pass_at = NEVER

    def forget(self, request: Request) -> None:
        """A request ended while it waited."""
        self._refusals.pop(request, None)

    def admit(self, max_num_seqs: int, budget: int, now: float) -> tuple[list[SlotStart], list[PrefillChunk]]:
        """Start requests with their first chunks. `budget`: tokens that are left of the step's."""
        starts: list[SlotStart] = []
        chunks: list[PrefillChunk] = []
        self._pass_time(now)
        running, table, num_blocks = self._running, self._running.table, 0
        while budget > 0 and table.num_running < max_num_seqs and table.has_free and num_blocks < STARTED_BLOCKS:
            start = self._start_next(now)
            if start is None:
                break
            starts.append(start)
            num_blocks += len(start.block_ids)
            chunks.append(running.plan_chunk(start.slot, budget))
            budget -= chunks[-1].length
        self._offload.release()
        return starts, chunks

    def _start_next(self, now: float) -> SlotStart | None:
        """Start the queues' head, or one beside it where it does not fit; None: nobody may."""
        clock = self._running.decodes.clock
        head = self._queues.head(clock)
        if head is None:
            return None
        fit = self._fit(head)
        if fit is not None:
            return self._start(head, fit)
        refusal = self._refusals.get(head)
        if refusal is None:
            running = self._running
            refusal = self._refusals[head] = Refusal(now, running.pool.num_free, running.table.num_starts)
            self.last_change = now
        beside, self._blocked_until = self._queues.beside(head, clock)
        self.pass_at = NEVER
        start = self._start_beside(head, refusal, beside, now)
        if start is None:
            self.blocked = [head, *beside]
        return start

    def _start_beside(self, head: Request, refusal: Refusal, requests: list[Request], now: float) -> SlotStart | None:
        """Start the first of the requests that fits and may pass the head, which does not fit."""
        running, pool, service_class = self._running, self._running.pool, head.scheduling.service_class
        left = pool.num_blocks - self.headroom_blocks - pool.blocks_for(head.num_tokens)
        beside = since = -1  # Blocks; counted for the first that fits.
        for request in requests:
            fit = self._fit(request)
            if fit is None:
                continue
            name, needed = request.scheduling.service_class, pool.blocks_for(request.num_tokens)
            if head.state is not RequestState.WAITING and name == service_class:
                may_pass = self._holds_fewer(request, head)
            else:
                if beside < 0:
                    beside, since = running.blocks_beside(left), running.blocks_since(refusal.num_starts)
                may_pass = beside + needed <= left or (
                    since + needed <= refusal.room and not self._is_over(refusal, name, service_class, now)
                )
            if may_pass:
                return self._start(request, fit)
        return None

    def _is_over(self, refusal: Refusal, service_class: str, of_head: str, now: float) -> bool:
        """Tell whether requests of a class may take no more of what was free when the head did not fit."""
        end = refusal.since + PASSING_SECONDS * max(1.0, self._queues.weight_ratio(service_class, of_head))
        if self.last_change < end <= now:
            self.last_change = now
        return now >= end

    def _holds_fewer(self, request: Request, head: Request) -> bool:
        """Tell whether the tenant of a new request is another than that of the head, which resumes, and holds, in all,
        no more blocks with it than the head's holds in the head's class. Else a tenant that fills the cache would hold
        up all others of the class.

        The head does not starve: while it waits no request of its tenant and class starts, and once none of them runs
        no request of its class passes it. What its tenant runs in other classes does not count: more of that may start
        all the time.
        """
        running = self._running
        if request.scheduling.tenant == head.scheduling.tenant:
            return False
        most = running.blocks_of(head.scheduling.tenant, head.scheduling.service_class)
        excess = running.blocks_of(request.scheduling.tenant) + running.pool.blocks_for(request.num_tokens) - most
        if excess > 0:
            # Until something changes decodes take blocks and give none back: each makes up for one at most.
            self.pass_at = max(NEVER, running.pool.num_free - excess)
        return excess <= 0

    def _fit(self, request: Request) -> tuple[BlockIds, int] | None:
        """Return the cached blocks that a waiting request shares, and how many new ones it needs; None: these do not
        fit now."""
        pool, num_tokens = self._running.pool, request.num_tokens
        # At least one token has to be computed, for its logits.
        hashes = request.block_hashes[: (num_tokens - 1) // pool.block_size]
        shared = pool.match(hashes) if hashes else _NO_BLOCKS
        num_new = pool.blocks_for(num_tokens) - len(shared)
        num_taken = num_new + (pool.num_unowned(shared) if len(shared) else 0)
        headroom = self.headroom_blocks if self._running.table.num_running else 0
        return (shared, num_new) if num_taken + headroom <= pool.num_free else None

    def _start(self, request: Request, fit: tuple[BlockIds, int]) -> SlotStart:
        """Move a waiting request to a slot. What follows on its cached blocks is loaded where the tier has it."""
        pool, num_tokens = self._running.pool, request.num_tokens
        shared, num_new = fit
        computed = len(shared) * pool.block_size
        hashes = request.block_hashes[len(shared) : (num_tokens - 1) // pool.block_size]
        loaded = self._offload.load(hashes, computed)
        computed += len(loaded) * pool.block_size
        if len(shared):
            pool.share(shared)
            block_ids = np.concatenate([shared, pool.allocate(num_new)])
        else:
            block_ids = pool.allocate(num_new)
        if self._prefix_caching and request.state is RequestState.WAITING:
            self.prefix_queries += request.num_prompt_tokens
            self.prefix_hits += min(computed, request.num_prompt_tokens)
        clock = self._running.decodes.clock
        self._refusals.pop(request, None)
        self._queues.take(request)
        self._queues.admitted(request, num_tokens - computed, clock)
        self._running.start(request, block_ids, computed, len(shared))
        if len(loaded):
            self._running.registered += self._running.register(request, request.slot, computed)
        request.state = RequestState.RUNNING
        return SlotStart(
            slot=request.slot,
            request_id=request.request_id,
            token_ids=request.token_ids,
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=computed,
            sampling=request.sampling,
            block_ids=block_ids,
            host_block_ids=tuple(loaded.tolist()),
            host_hashes=tuple(hashes[: len(loaded)]),
        )

    def _pass_time(self, now: float) -> bool:
        """Set the time; True: that makes a difference to the order of waiting requests."""
        changed = self._queues.pass_time(now)
        if changed:
            self.last_change = now
        return changed

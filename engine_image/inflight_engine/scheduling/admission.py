"""Admission: requests move from the queues to slots while limits, token budget and free KV blocks allow it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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


PASSING_SECONDS = 10.0
"""While others may take what was free when a request came to wait for blocks, unless their class has more weight."""


@dataclass(slots=True, eq=False)
class Reservation:
    """Blocks for the first request that did not fit. It keeps its place, ahead of all others, until it starts or ends.

    Attributes:
        since: when it did not fit for the first time.
        room: blocks that were free then. Others start in these; all that comes free is the request's.
        passed: those that started before it since then, and have not ended.
        num_over: classes that may take no more of `room`.
    """

    request: Request
    since: float
    room: int
    passed: set[Request] = field(default_factory=set)
    num_over: int = 0


class Admission:
    """Starts waiting requests, and remembers which of them do not fit, so that a step in which nothing changes need not
    try them again.

    The head that does not fit gets a `Reservation`. Beside it others start (`WaitingQueues.beside`) while they hold,
    all together, no more than what was free when it came to wait: for `PASSING_SECONDS`, and from a class of so many
    times the weight so many times as long. After that they start only in what it leaves of the cache. Once all have
    ended that ran by then, nobody starts before it: either it fits, or those that passed hold too much.

    Attributes:
        headroom_blocks: free blocks that admission leaves for growth while something runs.
        blocked: nobody fits until something changes; as decodes go on, or time, others may come to be next.
        pass_at: at so few free blocks the second of a class may pass a head that resumes: its tenant holds too many
            until others have grown.
        last_change: `now` of the last `schedule` at which time made a difference to the order of waiting requests.
            Calls with any later `now` before the next such one decide as calls with this one would.
        prefix_queries, prefix_hits: prompt tokens of admitted requests, and how many of them were in the prefix cache.
    """

    def __init__(self, config: SchedulerConfig, queues: WaitingQueues, running: Running, preemptor: Preemptor) -> None:
        self.headroom_blocks = int(config.kv_headroom * config.num_blocks)
        self.blocked = False
        self.pass_at = NEVER
        self.last_change = -math.inf
        self.prefix_queries = self.prefix_hits = 0
        self._reservation: Reservation | None = None
        self._beside: list[Request] = []
        """Requests that did not fit beside the reservation."""
        self._prefix_caching = config.prefix_caching
        self._queues = queues
        self._running = running
        self._preemptor = preemptor

    def head_moved(self, now: float) -> bool:
        """Tell whether another request than those that do not fit has come to be next."""
        if not self.blocked or self._reservation is None or self._queues.order_stays:
            return False
        self._pass_time(now)
        return self._queues.beside(self._reservation.request, self._running.decodes.clock) != self._beside

    def forget_blocked(self) -> None:
        """Try all requests again: something has changed."""
        self.blocked = False
        self.pass_at = NEVER

    def admit(self, max_num_seqs: int, budget: int, now: float) -> tuple[list[SlotStart], list[PrefillChunk]]:
        """Start requests with their first chunks. `budget`: tokens that are left of the step's."""
        starts: list[SlotStart] = []
        chunks: list[PrefillChunk] = []
        self._pass_time(now)
        running, table = self._running, self._running.table
        while budget > 0 and table.num_running < max_num_seqs and table.has_free:
            start = self._start_next(now)
            if start is None:
                break
            starts.append(start)
            chunks.append(running.plan_chunk(start.slot, budget))
            budget -= chunks[-1].length
        return starts, chunks

    def _start_next(self, now: float) -> SlotStart | None:
        reservation = self._reservation
        if reservation is not None and reservation.request.state is RequestState.FINISHED:
            reservation = self._reservation = None
        head = self._queues.head(self._running.decodes.clock) if reservation is None else reservation.request
        if head is None:
            return None
        start = self.start(head)
        if start is not None:
            self._reservation = None
            return start
        if reservation is None:
            reservation = self._reservation = Reservation(head, now, self._running.pool.num_free)
            self.last_change = now
        return self._start_beside(reservation, now)

    def _start_beside(self, reservation: Reservation, now: float) -> SlotStart | None:
        queues, clock = self._queues, self._running.decodes.clock
        head = reservation.request
        num_over = sum(now >= reservation.since + self._passing_seconds(name, head) for name in queues.by_class)
        if num_over != reservation.num_over:
            reservation.num_over, self.last_change = num_over, now
        reservation.passed = {each for each in reservation.passed if each.state is not RequestState.FINISHED}
        self.pass_at = NEVER
        self._beside = queues.beside(head, clock)
        for request in self._beside:
            if self.may_pass(request, reservation, now):
                start = self.start(request)
                if start is not None:
                    reservation.passed.add(request)
                    return start
        self.blocked = True
        return None

    def may_pass(self, request: Request, reservation: Reservation, now: float) -> bool:
        """Tell whether a request may start before the one that blocks are reserved for, if it fits."""
        running, head = self._running, reservation.request
        service_class = request.scheduling.service_class
        if self._queues.is_new_behind(request, head, running.decodes.clock):
            return self._holds_fewer(request, head)
        room = reservation.room
        if now >= reservation.since + self._passing_seconds(service_class, head):
            pool = running.pool
            room = min(room, pool.num_blocks - self.headroom_blocks - pool.blocks_for(head.num_tokens))
        return running.blocks_held_by(reservation.passed) + running.pool.blocks_for(request.num_tokens) <= room

    def _passing_seconds(self, service_class: str, head: Request) -> float:
        return PASSING_SECONDS * max(1.0, self._queues.weight_ratio(service_class, head.scheduling.service_class))

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

    def start(self, request: Request) -> SlotStart | None:
        """Move a waiting request to a slot; None: its blocks do not fit now."""
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
        self._queues.take(request)
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

"""Requests that hold a slot, their blocks and the content of these."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from inflight_engine.block_events import BlocksStored
from inflight_engine.cache.block_pool import BlockIds, BlockPool
from inflight_engine.cache.prefix import hash_blocks, root_hash, root_of, shares_blocks
from inflight_engine.request import Request, TokenIds
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.decodes import DecodeGroup
from inflight_engine.scheduling.phases import Phase, Phases
from inflight_engine.scheduling.plan import PrefillChunk, Slots, SlotStart
from inflight_engine.scheduling.queues import WaitingQueues
from inflight_engine.scheduling.slots import SlotTable
from inflight_engine.scheduling.stops import StopTokens

_COMMON_ROOT = root_hash("", "")


class Running:
    """Moves requests through the `Phases` of their stay in a slot: `start`, chunks, decodes, now and then `pause` and
    `resume`, and `leave`.

    A chunk is planned (`plan_chunk`), counted when another plan follows or its tokens come (`count_chunk`), and ended
    with its tokens (`end_chunk`); between the last two a step can be planned. The full blocks of a chunk can be found
    from its planning on, by a request of the same plan too: a step writes the keys and values of a layer, all chunks',
    before it attends to them. If the plan is dropped, `PlansInFlight` unregisters them. Blocks that decodes fill can be
    found once their request leaves.

    Attributes:
        registered: the blocks of chunks that can be found since the list was last taken.
        releases: slots that were left since the list was last taken.
        prefilling: slots with tokens still to be computed, in order of admission.
        extended: slots that decoded and have further tokens to compute, in the order in which they got them.
        paused: slots that would decode but for a token budget smaller than the number of decodes.
        num_uncomputed_tokens: of the slots in prefill and of those that are extended.
        tenants: how many requests each of them has.
    """

    def __init__(
        self, pool: BlockPool, table: SlotTable, decodes: DecodeGroup, queues: WaitingQueues, *, prefix_caching: bool
    ) -> None:
        self.pool = pool
        self.table = table
        self.decodes = decodes
        self.stops = StopTokens()
        self.phases = Phases(table.num_slots)
        self.prefilling = self.phases.slots(Phase.PREFILLING)
        self.paused = self.phases.slots(Phase.PAUSED)
        self.extended = self.phases.slots(Phase.EXTENDED)
        self.registered: list[int] = []
        self.releases: list[int] = []
        self.num_uncomputed_tokens = 0
        self.tenants: Counter[str] = Counter()
        self._new_extensions: dict[int, None] = {}
        """Slots that are extended and were in no plan since."""
        self._prefix_caching = prefix_caching
        self._queues = queues

    def start(self, request: Request, block_ids: BlockIds, num_computed: int, num_shared: int) -> None:
        """Give a request the lowest free slot.

        Args:
            block_ids: a table for all of its tokens.
            num_computed: tokens whose keys and values are there already, fewer than all.
            num_shared: leading blocks that the prefix cache knows.
        """
        slot = self.table.take(request, block_ids, num_computed, num_shared)
        request.slot = slot
        self.phases.start(slot)
        self.num_uncomputed_tokens += request.num_tokens - num_computed
        self.tenants[request.scheduling.tenant] += 1
        self.stops.add(request.sampling.stop_token_ids)

    def blocks_by_tenant(self) -> dict[str, int]:
        """Return the number of blocks that each tenant's requests hold. Walks over all of them."""
        slots: dict[str, list[int]] = {}
        for slot, request in enumerate(self.table.requests):
            if request is not None:
                slots.setdefault(request.scheduling.tenant, []).append(slot)
        return {tenant: self._num_held(of_tenant) for tenant, of_tenant in slots.items()}

    def blocks_of(self, tenant: str, service_class: str | None = None) -> int:
        """Return the number of blocks that a tenant's requests hold, of one class or all. Walks over all requests."""
        return self._num_held(
            [
                slot
                for slot, request in enumerate(self.table.requests)
                if request is not None
                and request.scheduling.tenant == tenant
                and service_class in (None, request.scheduling.service_class)
            ]
        )

    def blocks_since(self, num_starts: int) -> int:
        """Return the number of blocks that requests hold which started after so many others."""
        table = self.table
        return self._num_held(np.flatnonzero((table.order >= 0) & (table.start >= num_starts)))

    def blocks_beside(self, left: int) -> int:
        """Return the number of blocks that requests hold whose prompts fit in so many."""
        table, pool = self.table, self.pool
        taken, fits = table.order >= 0, table.num_prompt_tokens <= left * pool.block_size
        if fits[taken].all():
            return pool.num_blocks - pool.num_free
        return self._num_held(np.flatnonzero(taken & fits))

    def _num_held(self, slots: list[int] | Slots) -> int:
        """Count the blocks of slots. A block that several share counts once: tables may be far longer than what they
        take."""
        if not self._prefix_caching or len(slots) < 2:
            return int(self.table.num_blocks[slots].sum())
        held = np.zeros(self.pool.num_blocks, np.bool_)
        held[np.concatenate([self.table.table(slot) for slot in slots])] = True
        return int(np.count_nonzero(held))

    def plan_chunk(self, slot: int, budget: int) -> PrefillChunk:
        """Plan as much of a slot's prefill as the budget allows. Its full blocks can be found from now on."""
        start = int(self.table.num_computed[slot])
        request = self.table.request(slot)
        remaining = request.num_tokens - start
        length = min(remaining, budget)
        self.registered += self.register(request, slot, start + length)
        return PrefillChunk(slot, start, length, samples=length == remaining)

    def count_chunk(self, chunk: PrefillChunk) -> bool:
        """Count a chunk, which is computed before anything that is planned from now on; where it samples, its slot
        decodes. True: with that token the request has its full length."""
        slot = chunk.slot
        self.table.num_computed[slot] = chunk.start + chunk.length
        self.num_uncomputed_tokens -= chunk.length
        if not chunk.samples:
            return False
        request = self.table.request(slot)
        self.phases.move(slot, Phase.FIRST_TOKEN_IN_FLIGHT)
        num_tokens, length = request.num_tokens + 1, request.max_total_tokens
        self.decodes.join(slot, num_tokens, length)
        self._queues.decode_started(request, self.decodes.clock)
        return num_tokens == length

    def end_chunk(self, chunk: PrefillChunk, token_id: int) -> None:
        """Take in a chunk that was counted and has been computed. `token_id`: what it sampled, if it does."""
        if not chunk.samples:
            return
        slot, phases = chunk.slot, self.phases
        only = phases[slot] is Phase.ONLY_TOKEN_IN_FLIGHT
        phases.move(slot, Phase.FINISHED if only else Phase.DECODING)
        self._append(self.table.request(slot), token_id)

    def end_decoding(self, slot: int) -> None:
        """Reach the full length with the step that was counted last, whose token is not known yet."""
        first = self.phases[slot] is Phase.FIRST_TOKEN_IN_FLIGHT
        self.phases.move(slot, Phase.ONLY_TOKEN_IN_FLIGHT if first else Phase.LAST_TOKEN_IN_FLIGHT)
        self._stop_decoding(slot)

    def take_last_token(self, slot: int) -> None:
        """Take the last token from the decodes that are filled now, unless the request's only chunk brought it
        (`end_chunk`)."""
        if self.phases[slot] is not Phase.FINISHED:
            self.phases.move(slot, Phase.FINISHED)
            self._append(self.table.request(slot), self.decodes.last_token(slot))

    def pause(self, slot: int) -> None:
        """Stop decoding for a while; slot and blocks are kept."""
        self.phases.move(slot, Phase.PAUSED)
        self._stop_decoding(slot)

    def resume(self, slot: int) -> None:
        """Decode in every step from now on."""
        self.phases.move(slot, Phase.DECODING)
        request = self.table.request(slot)
        self.decodes.join(slot, request.num_tokens, request.max_total_tokens)
        self._queues.decode_started(request, self.decodes.clock)

    def extend(self, slot: int, token_ids: TokenIds, block_ids: BlockIds) -> None:
        """Go on with tokens that a decoding request does not have to sample. The last one that it sampled is computed
        with them, whether or not a step in flight computes it.

        Args:
            block_ids: those that its table lacks for all of its tokens.
        """
        self.phases.move(slot, Phase.EXTENDED)
        self._stop_decoding(slot)
        request = self.table.request(slot)
        request.output_token_ids = np.concatenate([request.output_token_ids, token_ids])
        if self._prefix_caching:  # of all, as of a new request: it may be preempted before they are computed
            hash_blocks(request, request.num_tokens, self.pool.block_size)
        num_uncomputed = len(token_ids) + 1
        self.table.extend(slot, block_ids, request.num_tokens - num_uncomputed)
        self.num_uncomputed_tokens += num_uncomputed
        self._new_extensions[slot] = None
        self._queues.generated(request, num_uncomputed, self.decodes.clock)

    @property
    def num_extended_tokens(self) -> int:
        """Tokens of `extended` that are left to compute."""
        table = self.table
        return sum(table.request(slot).num_tokens - int(table.num_computed[slot]) for slot in self.extended)

    def count_extensions(self) -> None:
        """Set the lengths of slots that were extended; once no step that they decoded in is left to be counted."""
        for slot in self._new_extensions:
            self.table.num_tokens[slot] = self.table.request(slot).num_tokens

    def plan_extensions(self, chunks: list[PrefillChunk]) -> tuple[SlotStart, ...]:
        """Plan the extensions of slots whose first chunk since then is among these."""
        if not self._new_extensions:
            return ()
        slots = [chunk.slot for chunk in chunks if chunk.slot in self._new_extensions]
        for slot in slots:
            del self._new_extensions[slot]
        return tuple(map(self._extension, slots))

    def _extension(self, slot: int) -> SlotStart:
        request = self.table.request(slot)
        return SlotStart(
            slot=slot,
            request_id=request.request_id,
            token_ids=request.token_ids,
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=int(self.table.num_computed[slot]),
            sampling=request.sampling,
            block_ids=self.table.table(slot).copy(),
            host_block_ids=(),
        )

    def leave(self, request: Request) -> tuple[BlockIds, int]:
        """Release a request's slot and blocks. Its full blocks stay in the prefix cache.

        Returns:
            The block table it had, and how many of its tokens are computed in it.
        """
        slot = request.slot
        phase = self.phases.leave(slot)
        if phase in (Phase.PREFILLING, Phase.EXTENDED):
            computed = int(self.table.num_computed[slot])
            self.num_uncomputed_tokens -= request.num_tokens - computed
            self._new_extensions.pop(slot, None)
        else:
            if phase in (Phase.FIRST_TOKEN_IN_FLIGHT, Phase.DECODING):
                self._stop_decoding(slot)
            # Of the tokens that are known; a step in flight may be computing the last one.
            computed = request.num_tokens - 1
        self.register(request, slot, computed)
        self.tenants[request.scheduling.tenant] -= 1
        if not self.tenants[request.scheduling.tenant]:
            del self.tenants[request.scheduling.tenant]
        blocks = self.table.table(slot).copy()
        self.pool.free(blocks)
        self.table.release(slot)
        self.stops.remove(request.sampling.stop_token_ids)
        self.releases.append(slot)
        request.slot = -1
        return blocks, computed

    def _stop_decoding(self, slot: int) -> None:
        request = self.table.request(slot)
        request.output_token_ids = np.concatenate([request.output_token_ids, self.decodes.leave(slot)])
        self._queues.decode_ended(request, self.decodes.clock)

    def _append(self, request: Request, token_id: int) -> None:
        request.output_token_ids = np.concatenate((request.output_token_ids, np.array((token_id,), np.int32)))

    def register(self, request: Request, slot: int, num_tokens: int) -> list[int]:
        """Tell the prefix cache what the slot's full blocks of so many tokens contain; returns those new to it."""
        if not self._prefix_caching or not shares_blocks(request):
            return []
        block_size = self.pool.block_size
        known, full = int(self.table.num_registered[slot]), num_tokens // block_size
        if full <= known:
            return []
        if len(request.block_hashes) < full:
            hash_blocks(request, full * block_size, block_size)
        self.table.num_registered[slot] = full
        blocks = self.table.table(slot)[known:full]
        registered = self.pool.register(blocks, request.block_hashes[known:full])
        if registered and self.pool.events is not None:
            whole = len(registered) == len(blocks)
            runs = [range(known, full)] if whole else _runs(known + np.flatnonzero(np.isin(blocks, registered)))
            self.pool.events += [_stored(request, run, block_size) for run in runs]
        return registered


def longest_request(config: SchedulerConfig) -> int:
    """Return the maximum number of tokens, prompt and output, of a request."""
    return min(config.max_model_len, config.num_blocks * config.block_size)


def _runs(numbers: npt.NDArray[np.intp]) -> list[range]:
    """Return the runs of consecutive numbers among ascending ones."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return [range(int(part[0]), int(part[-1]) + 1) for part in parts]


def _stored(request: Request, run: range, block_size: int) -> BlocksStored:
    """Describe these blocks of a request that is not decoding."""
    start, end = run.start, run.stop
    tokens = request.token_ids[start * block_size : end * block_size]
    root = root_of(request) if start == 0 else _COMMON_ROOT
    return BlocksStored(
        hashes=b"".join(request.block_hashes[start:end]),
        parent=request.block_hashes[start - 1] if start else b"",
        root=b"" if root == _COMMON_ROOT else root,
        token_ids=tokens.astype("<i4", copy=False).tobytes(),
    )

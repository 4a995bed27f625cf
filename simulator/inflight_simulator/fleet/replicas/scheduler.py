"""A replica's scheduler: the engine's, which takes in many steps at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from typing import cast

import numpy as np

from inflight_engine.cache.block_pool import BlockIds, BlockPool, OutOfBlocksError
from inflight_engine.cache.offload import Offload
from inflight_engine.request import FinishReason, Request, TokenIds
from inflight_engine.scheduling.admission import NEVER, Admission
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.decodes import Counts, DecodeGroup
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.scheduling.slots import SlotTable
from inflight_simulator.arrivals import OUTPUT_TOKEN


class BlockCounter(BlockPool):
    """Counts the blocks that are free, and gives every block the id 0; for a scheduler without a prefix cache."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = self.num_free = num_blocks
        self.block_size = block_size

    def allocate(self, count: int) -> BlockIds:
        if count > self.num_free:
            raise OutOfBlocksError(f"{count} blocks wanted, {self.num_free} free")
        self.num_free -= count
        return np.zeros(count, np.int32)

    def free(self, block_ids: BlockIds | Sequence[int], *, elsewhere: bool = False) -> None:
        self.num_free += len(block_ids)

    def match(self, hashes: Sequence[bytes]) -> BlockIds:
        return np.empty(0, np.int32)


@cache
def _output(num_tokens: int) -> TokenIds:
    """Return int32 [num_tokens], all `OUTPUT_TOKEN`, read-only."""
    tokens = np.full(num_tokens, OUTPUT_TOKEN, np.int32)
    tokens.flags.writeable = False
    return tokens


class SteadyDecodes(DecodeGroup):
    """Decodes that all sample `OUTPUT_TOKEN`, never ahead of a step that is not filled. So many steps can be counted at
    once, and what ends when is known when a member joins."""

    def __init__(self, table: SlotTable, num_blocks: int, block_size: int) -> None:
        super().__init__(table, 0, block_size)  # no tokens to keep
        self._ending: dict[int, dict[int, None]] = {}
        """Members by the clock at which they reach their length."""

    def join(self, slot: int, num_tokens: int, length: int) -> None:
        super().join(slot, num_tokens, length)
        self._ending.setdefault(self.clock + length - num_tokens, {})[slot] = None

    def leave(self, slot: int) -> TokenIds:
        end = self.clock + int(self._length[slot] - self._table.num_tokens[slot])
        del self._ending[end][slot]
        if not self._ending[end]:
            del self._ending[end]
        return super().leave(slot)

    def count(self, gain: Counts, most: int, total: int) -> list[int]:
        self._table.num_tokens += gain
        self.num_attended += total
        self.clock += most
        return list(self._ending.get(self.clock, ()))

    def fill(self, token_ids: TokenIds) -> None: ...

    def _sampled_at(self, slot: int, start: int, end: int) -> TokenIds:
        return _output(self._table.max_blocks * self._block_size)[: end - start]

    def steady_steps(self, num_free: int) -> int:
        """Return how many steps can be counted until, with the last of them, a member reaches its length, or before a
        table would grow that has no block among `num_free` left."""
        steps = min(self._ending) - self.clock
        if self.num_members * (steps // self._block_size + 1) <= num_free:
            return steps
        return bisect_right(range(1, steps + 1), num_free, key=lambda count: self._num_missing(self._needed(count)))

    def advance_many(self, count: int, pool: BlockPool) -> list[int]:
        """Count and fill so many steps, at most `steady_steps` of the pool's free blocks and at least one. `slots` must
        be settled. Returns the members that reach their length with the last of them."""
        table, columns, needed = self._table, self._columns, self._needed(count)
        num_missing = self._num_missing(needed)
        if num_missing:
            block_ids = pool.allocate(num_missing)
            if not isinstance(pool, BlockCounter):
                self._place(needed, block_ids)
            table.num_blocks[columns] = needed
            self._room[columns] = needed * self._size
        return self.count(self._gain * np.array(count), count, count * self.num_members)

    def _needed(self, count: int) -> Counts:
        """Blocks that each of `slots` needs for so many steps."""
        # A member with n tokens before the last of the steps needs blocks for all n then.
        ahead = np.array(count + self._block_size - 2)
        needed: Counts = (self._table.num_tokens[self._columns] + ahead) // self._size
        return needed

    def _num_missing(self, needed: Counts) -> int:
        return int(np.add.reduce(needed - self._table.num_blocks[self._columns]))

    def _place(self, needed: Counts, block_ids: BlockIds) -> None:
        """Write new blocks into the tables of `slots`, in the order in which single steps would."""
        slots, table = self.slots, self._table
        missing = needed - table.num_blocks[slots]
        # One entry for each block: its place in its table, and how many tokens more its member has when it is needed.
        row = np.repeat(np.arange(len(slots)), missing)
        first = table.num_blocks[slots] - (np.cumsum(missing) - missing)
        place = np.arange(len(block_ids)) + first[row]
        needed_at = place * self._block_size + 1 - table.num_tokens[slots][row]
        order = np.argsort(needed_at, kind="stable")  # Slots are ascending already.
        table.blocks[slots[row[order]], place[order]] = block_ids


class PeerBlocks(Offload):
    """The blocks that have come from other replicas, each of which is loaded once, in front of the tier.

    In the engine they come to places of the tier; here they take none of it, so that replicas without host memory can
    be simulated, and the tier holds what it does without them.
    """

    def __init__(self, tier: Offload, pool: BlockPool, longest: int) -> None:
        super().__init__(None, pool, longest=longest, always=False, cost=lambda: None)
        self._behind = tier
        self._came: set[bytes] = set()
        """The last hash of each row of blocks."""

    def came(self, hashes: Sequence[bytes]) -> None:
        """Takes in a row of blocks."""
        self._came.add(hashes[-1])

    def load(self, hashes: Sequence[bytes], num_before: int) -> BlockIds:
        """See `Offload`."""
        if not hashes or hashes[-1] not in self._came:
            return self._behind.load(hashes, num_before)
        self._came.remove(hashes[-1])
        return np.zeros(len(hashes), np.int32)

    def release(self) -> None:
        """See `Offload`."""
        self._behind.release()


class FleetScheduler(Scheduler):
    """Plans as the engine's scheduler does, and takes in many steps at once where their tokens decide nothing. Where
    there is no prefix cache, blocks are counted only: all ids are 0.

    Attributes:
        peers: blocks that have come from other replicas.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        pool = BlockPool if config.prefix_caching else BlockCounter
        super().__init__(config, make_pool=pool, make_decodes=SteadyDecodes)
        self._decodes = cast(SteadyDecodes, self.running.decodes)
        self._has_tier = config.has_tier
        self.peers = PeerBlocks(self.offload, self.running.pool, self._longest)
        self.admission = Admission(config, self.queues, self.running, self.peers)

    def withdraw(self, request_id: int) -> tuple[Request, list[bytes]]:
        """Takes a request away that goes on elsewhere; returns it, and the names of the blocks that are computed of
        it: all that are full, but for one that only its last token fills."""
        request = self._requests[request_id]
        computed = request.slot >= 0 and request.slot not in self.running.prefilling
        self.cancel(request_id, FinishReason.ABORT)
        self._decodes.settle()
        count = (request.num_tokens - 1) // self.config.block_size if computed else 0
        return request, request.block_hashes[:count] or [b"%d" % request_id] * count

    @property
    def num_decoding(self) -> int:
        """Requests that get a token in a step that is planned now, unless blocks run out."""
        self._decodes.settle()
        return len(self._decodes.slots)

    def decoding(self) -> list[tuple[Request, int]]:
        """Return the requests that decode, each with the tokens it has generated so far; walks over all of them."""
        decodes, table = self._decodes, self.running.table
        decodes.settle()
        requests = [table.request(slot) for slot in decodes.slots.tolist()]
        known = table.num_tokens[decodes.slots].tolist()
        return [(each, tokens - each.num_prompt_tokens) for each, tokens in zip(requests, known, strict=True)]

    @property
    def num_tokens_ahead(self) -> int:
        """Tokens that are computed before the first one of a request that comes now: `num_uncomputed_tokens` without
        those of late requests, which it overtakes."""
        late = sum(queue.policy.num_late_tokens for queue in self.queues.by_class.values())
        return self.num_uncomputed_tokens - late

    def steady_steps(self) -> int:
        """Count the next steps that are decodes alone, in which nothing is to be decided: they may be taken in with one
        `advance_many`. Requests may end with the last one.

        0: the next step has to be planned by `schedule`, or a plan is in flight.
        """
        running, decodes, max_num_batched_tokens = self.running, self._decodes, self._limits.max_num_batched_tokens
        if self.in_flight.newest is not None or running.prefilling or running.paused:
            return 0
        decodes.settle()
        num_decodes = len(decodes.slots)
        if num_decodes == 0 or num_decodes > max_num_batched_tokens:
            return 0
        if len(self.queues) and num_decodes < max_num_batched_tokens and self._may_admit():
            return 0
        num_free = running.pool.num_free - self.admission.pass_at + NEVER
        if self._has_tier:
            # What goes to the tier is copied by the step that evicts it.
            num_free = min(num_free, running.pool.num_empty)
        return decodes.steady_steps(num_free)

    def _may_admit(self) -> bool:
        """Tell whether a steady step might have a slot and blocks for a request that waits."""
        if self.num_running >= self._limits.max_num_seqs or not self.running.table.has_free:
            return False
        # Requests that stay at their places, and did not fit, fit no better in a cache that only fills.
        return self.changed or not (self.admission.blocked and self.queues.order_stays)

    def advance_many(self, count: int) -> list[Request]:
        """Take in so many steps at once, at least one and at most `steady_steps`: the state is then that after as many
        times `schedule` and `update` with `OUTPUT_TOKEN`, which must be no stop token, for every decode.

        Returns:
            The requests that ended with the last step.
        """
        running = self.running
        if self.changed:
            self.changed = False
            self.admission.forget_blocked()
            running.releases.clear()
        self.num_steps += count
        finished = [running.table.request(slot) for slot in self._decodes.advance_many(count, running.pool)]
        for request in finished:
            self._finish(request, FinishReason.LENGTH)
        return finished

"""The requests that hold a slot: in prefill, decoding, or paused; with their blocks and what those contain."""

from __future__ import annotations

import numpy as np

from inflight_engine.cache.block_counter import BlockCounter
from inflight_engine.cache.block_ids import BlockIds
from inflight_engine.cache.block_pool import BlockPool
from inflight_engine.cache.prefix import block_hashes, root_hash
from inflight_engine.request import Request, TokenIds
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.decodes import DecodeGroup
from inflight_engine.scheduling.plan import PrefillChunk
from inflight_engine.scheduling.queues import WaitingQueues
from inflight_engine.scheduling.slots import SlotTable
from inflight_engine.scheduling.stops import StopTokens
from inflight_engine.scheduling.token_pages import NoTokens


class Running:
    """Moves requests through their stay in a slot: `start`, chunks, decodes, now and then `pause` and `resume`, and
    `leave`.

    A step is counted (`count_chunk`) when it is sure to be computed, which may be before its tokens are known
    (`end_chunk`): between the two another step can be planned. Only what `end_chunk` and the decodes' `fill` confirm is
    told to the prefix cache, because a step that is under way may still fail.

    Attributes:
        prefilling: slots with tokens still to be computed, in order of admission.
        unsampled: slots whose last chunk is counted and whose first token is not known yet; they decode already.
        ending: slots that reach their length with a step that is counted, so they are in no later one.
        paused: slots that would decode but for a token budget smaller than the number of decodes.
        releases: slots that were left since the list was last taken.
        num_uncomputed_tokens: of the slots in prefill.
    """

    def __init__(self, config: SchedulerConfig, queues: WaitingQueues, *, contents: bool) -> None:
        longest = longest_request(config)
        make_pool = BlockPool if contents else BlockCounter
        self.pool: BlockPool | BlockCounter = make_pool(config.num_blocks, config.block_size)
        self.table = SlotTable(config.capacity.max_num_seqs, self.pool.blocks_for(longest))
        self.decodes = DecodeGroup(self.table, config.block_size, None if contents else NoTokens(longest))
        self.stops = StopTokens()
        self.prefilling: dict[int, None] = {}
        self.unsampled: dict[int, None] = {}
        self.ending: dict[int, None] = {}
        self.paused: dict[int, None] = {}
        self.releases: list[int] = []
        self.num_uncomputed_tokens = 0
        self._prefix_caching = config.prefix_caching
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
        self.prefilling[slot] = None
        self.num_uncomputed_tokens += request.num_tokens - num_computed
        self.stops.add(request.sampling.stop_token_ids)

    def next_chunk(self, slot: int, budget: int) -> PrefillChunk:
        """As much of a slot's prefill as the budget allows."""
        start = int(self.table.num_computed[slot])
        remaining = self.table.request(slot).num_tokens - start
        length = min(remaining, budget)
        return PrefillChunk(slot, start, length, samples=length == remaining)

    def count_chunk(self, chunk: PrefillChunk) -> bool:
        """The chunk is computed before anything that is planned from now on; where it samples, its slot decodes. True:
        with that token the request has its full length."""
        slot = chunk.slot
        self.table.num_computed[slot] = chunk.start + chunk.length
        self.num_uncomputed_tokens -= chunk.length
        if not chunk.samples:
            return False
        request = self.table.request(slot)
        del self.prefilling[slot]
        self.unsampled[slot] = None
        num_tokens, length = request.num_tokens + 1, request.max_total_tokens
        self.decodes.join(slot, num_tokens, length)
        self._queues.decode_started(request, self.decodes.clock)
        return num_tokens == length

    def end_chunk(self, chunk: PrefillChunk, token_id: int) -> None:
        """A chunk that was counted has been computed. `token_id`: what it sampled, if it does."""
        slot = chunk.slot
        request = self.table.request(slot)
        self._register(request, slot, chunk.start + chunk.length)
        if chunk.samples:
            del self.unsampled[slot]
            self._append(request, token_id)

    def end_decoding(self, slot: int) -> None:
        """Reach the full length with the step that was counted last, whose token is not known yet."""
        self._stop_decoding(slot)
        self.ending[slot] = None

    def take_last_token(self, slot: int) -> None:
        """Of a slot that is ending with a decode that is filled now."""
        self._append(self.table.request(slot), self.decodes.last_token(slot))

    def pause(self, slot: int) -> None:
        """Stop decoding for a while; slot and blocks are kept."""
        self._stop_decoding(slot)
        self.paused[slot] = None

    def resume(self, slot: int) -> None:
        """Decode in every step from now on."""
        self.paused.pop(slot, None)
        request = self.table.request(slot)
        self.decodes.join(slot, request.num_tokens, request.max_total_tokens)
        self._queues.decode_started(request, self.decodes.clock)

    def leave(self, request: Request) -> tuple[BlockIds, int]:
        """Release a request's slot and blocks. What was computed of full blocks stays in the prefix cache.

        Returns:
            The block table it had, and how many of its tokens are computed in it.
        """
        slot = request.slot
        if slot in self.prefilling:
            # Registered after each chunk. What is not may be missing: a step that failed was to copy it back.
            del self.prefilling[slot]
            computed = int(self.table.num_computed[slot])
            self.num_uncomputed_tokens -= request.num_tokens - computed
        else:
            if slot in self.paused:
                del self.paused[slot]
            elif slot in self.ending:
                del self.ending[slot]
            else:
                self._stop_decoding(slot)
            # Of the tokens that are known; a step under way may be computing the last one.
            computed = request.num_tokens - 1
            if slot in self.unsampled:
                del self.unsampled[slot]
            else:
                self._register(request, slot, computed)
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

    def _register(self, request: Request, slot: int, num_computed: int) -> None:
        """Tell the prefix cache what the slot's full computed blocks contain."""
        if not self._prefix_caching:
            return
        block_size = self.pool.block_size
        known, full = int(self.table.num_registered[slot]), num_computed // block_size
        if full <= known:
            return
        if len(request.block_hashes) < full:
            hash_blocks(request, full * block_size, block_size)
        self.pool.register(self.table.table(slot)[known:full], request.block_hashes[known:full])
        self.table.num_registered[slot] = full


def longest_request(config: SchedulerConfig) -> int:
    """Most tokens, prompt and output, that a request can have."""
    return min(config.max_model_len, config.num_blocks * config.block_size)


def all_tokens(request: Request) -> TokenIds:
    """Prompt and output known so far of a request that is not decoding, int32."""
    if not len(request.output_token_ids):
        return request.prompt_token_ids
    return np.concatenate([request.prompt_token_ids, request.output_token_ids])


def hash_blocks(request: Request, num_tokens: int, block_size: int) -> None:
    """Extend `block_hashes` to all full blocks of the request's first `num_tokens` tokens."""
    hashed = len(request.block_hashes)
    parent = request.block_hashes[-1] if hashed else root_hash(request.tenant, request.cache_salt)
    tokens = all_tokens(request)[hashed * block_size : num_tokens]
    request.block_hashes += block_hashes(tokens, block_size, parent)

"""Tokens for a replay: equal blocks of the recorded run have equal tokens, different blocks differ.

A full block's content id is its last token, the one that is known when it is full; all other tokens are the same.
Hashes are chained, so a block equals another only if everything before it does, as in the recorded run.
"""

from __future__ import annotations

import numpy as np

from inflight_engine.recording.lines import NO_CONTENT, STOP_TOKEN, BlockRuns, content_ids_of
from inflight_engine.request import TokenIds
from inflight_engine.scheduling.plan import StepPlan


class PseudoTokens:
    """The tokens of all requests of a replay.

    Attributes:
        request_in: the request in each slot; one that ended stays until its slot is released.
    """

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.request_in: dict[int, int] = {}
        self._block_size = block_size
        self._content_ids: dict[int, TokenIds] = {}
        self._num_tokens = np.zeros(num_slots, np.int64)

    def arrived(self, request_id: int, num_tokens: int, blocks: BlockRuns) -> TokenIds:
        """The tokens that a request comes with, int32 [num_tokens]. `blocks`: of all blocks it will have filled."""
        content_ids = np.fromiter(content_ids_of(blocks), np.int32)
        self._content_ids[request_id] = content_ids
        tokens = np.full(num_tokens, NO_CONTENT, np.int32)
        last_of_block = tokens[self._block_size - 1 :: self._block_size]
        known = content_ids[: len(last_of_block)]
        last_of_block[: len(known)] = known
        return tokens

    def forget(self, request_id: int) -> None:
        """The request has ended."""
        del self._content_ids[request_id]

    def place(self, plan: StepPlan) -> None:
        """Follow the plan's releases and starts."""
        for slot in plan.releases:
            del self.request_in[slot]
        for start in plan.starts:
            self.request_in[start.slot] = start.request_id
            self._num_tokens[start.slot] = len(start.token_ids)

    def sample(self, plan: StepPlan, stopping: set[int]) -> TokenIds:
        """The step's tokens, int32, one for each of `plan.sampled_slots`. `stopping`: requests that stop with it."""
        slots = plan.sampled_slots
        positions = self._num_tokens[slots]
        self._num_tokens[slots] = positions + 1
        tokens = np.full(len(slots), NO_CONTENT, np.int32)
        for index in np.flatnonzero((positions + 1) % self._block_size == 0).tolist():
            # None of a request that had ended when its last step was computed.
            content_ids = self._content_ids.get(self.request_in[int(slots[index])])
            block = int(positions[index]) // self._block_size
            if content_ids is not None and block < len(content_ids):
                tokens[index] = content_ids[block]
        if stopping:
            for index, slot in enumerate(slots.tolist()):
                if self.request_in[slot] in stopping:
                    tokens[index] = STOP_TOKEN
        return tokens

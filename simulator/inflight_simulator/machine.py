"""The sizes of the engine that is simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inflight_simulator.arrivals import Arrival, blocks_of


@dataclass(frozen=True, slots=True)
class Machine:
    """What every kind of batching has to do with.

    Attributes:
        max_num_seqs: slots.
        num_blocks, block_size: the KV cache.
        max_model_len: longest request, prompt plus output, in tokens.
    """

    max_num_seqs: int
    num_blocks: int
    block_size: int
    max_model_len: int

    @property
    def longest_request(self) -> int:
        """Tokens of the longest request that can ever run."""
        return min(self.max_model_len, self.num_blocks * self.block_size)


def ample_blocks(arrivals: Sequence[Arrival], max_num_seqs: int, block_size: int, kv_headroom: float) -> int:
    """KV blocks with which these requests never wait for one: the largest at once, and the headroom above them."""
    largest = sorted((blocks_of(arrival.total_tokens, block_size) for arrival in arrivals), reverse=True)
    # One for what the headroom's share is rounded by.
    return math.ceil(sum(largest[:max_num_seqs]) / (1 - kv_headroom)) + 1

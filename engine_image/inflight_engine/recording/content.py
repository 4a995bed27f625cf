"""Numbers for the content of blocks, so that a recording needs no hashes and gives no content away."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inflight_engine.recording.lines import FIRST_CONTENT_ID, BlockRuns, runs_of
from inflight_engine.request import Request

_FEWEST_BEFORE_FORGETTING = 8192


class ContentIds:
    """Gives equal block hashes equal numbers for as long as the scheduler could find them equal.

    A hash that no request at hand has and the prefix cache has lost is forgotten. If it comes back it gets another
    number, which changes no decision: there is nothing left that it could have been equal to.

    Attributes:
        next_id: the number that the next new hash gets.
    """

    def __init__(self, requests: Mapping[int, Request], is_cached: Callable[[bytes], bool]) -> None:
        """`requests`: those at hand, by id; `is_cached`: whether the prefix cache has a block with this hash."""
        self._requests = requests
        self._is_cached = is_cached
        self._ids: dict[bytes, int] = {}
        self._num_told: dict[int, int] = {}
        self._forget_at = _FEWEST_BEFORE_FORGETTING
        self.next_id = FIRST_CONTENT_ID

    def __len__(self) -> int:
        return len(self._ids)

    def new_runs(self, request: Request) -> BlockRuns:
        """Numbers of the request's blocks that were not asked for before."""
        num_told = self._num_told.get(request.request_id, 0)
        self._num_told[request.request_id] = len(request.block_hashes)
        runs = runs_of([self._id_of(block_hash) for block_hash in request.block_hashes[num_told:]])
        if len(self._ids) > self._forget_at:
            self._forget_lost()
        return runs

    def ended(self, request_id: int) -> None:
        self._num_told.pop(request_id, None)

    def _id_of(self, block_hash: bytes) -> int:
        content_id = self._ids.setdefault(block_hash, self.next_id)
        if content_id == self.next_id:
            self.next_id += 1
        return content_id

    def _forget_lost(self) -> None:
        at_hand = {block_hash for request in self._requests.values() for block_hash in request.block_hashes}
        self._ids = {
            block_hash: content_id
            for block_hash, content_id in self._ids.items()
            if block_hash in at_hand or self._is_cached(block_hash)
        }
        # Twice what had to be kept: each new hash then costs two look-ups here, on average.
        self._forget_at = max(2 * len(self._ids), _FEWEST_BEFORE_FORGETTING)

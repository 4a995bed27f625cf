"""Numbers for the content of blocks, so that a recording is small and gives no content away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from inflight_engine.recording.lines import BlockRuns
from inflight_engine.request import Request

_FEWEST_BEFORE_FORGETTING = 8192


class ContentNumbers:
    """Gives equal block hashes equal numbers for as long as the scheduler could find them equal.

    A hash is forgotten when no request at hand has it and the prefix cache has lost it. If it comes back it gets
    another number, which changes no decision: there is nothing left that it could have been equal to.

    Args:
        requests: the requests at hand, by id.
        is_cached: tells whether the prefix cache has a block with this hash.
    """

    def __init__(self, requests: Mapping[int, Request], is_cached: Callable[[bytes], bool]) -> None:
        self._requests = requests
        self._is_cached = is_cached
        self._numbers: dict[bytes, int] = {}
        self._next = 0
        self._forget_at = _FEWEST_BEFORE_FORGETTING

    def runs(self, hashes: Sequence[bytes]) -> BlockRuns:
        """Return the numbers of blocks. New content gets the next numbers, so it is one run."""
        runs: BlockRuns = []
        for block_hash in hashes:
            number = self._numbers.setdefault(block_hash, self._next)
            if number == self._next:
                self._next += 1
            first, count = runs[-1] if runs else (number, 0)
            if number == first + count:
                runs[-1:] = [(first, count + 1)]
            else:
                runs.append((number, 1))
        if len(self._numbers) > self._forget_at:
            self._forget_lost()
        return runs

    def _forget_lost(self) -> None:
        at_hand = {block_hash for request in self._requests.values() for block_hash in request.block_hashes}
        self._numbers = {
            block_hash: number
            for block_hash, number in self._numbers.items()
            if block_hash in at_hand or self._is_cached(block_hash)
        }
        # Twice what had to be kept: each new hash then costs two look-ups here, on average.
        self._forget_at = max(2 * len(self._numbers), _FEWEST_BEFORE_FORGETTING)

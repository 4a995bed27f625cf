"""Requests on their way to the scheduler: their blocks are hashed in turns, so that no step waits for long."""

from __future__ import annotations

from typing import NamedTuple

from inflight_engine.cache.prefix import hash_blocks, root_of, shares_blocks
from inflight_engine.request import Request, TokenIds

BLOCKS_PER_TURN = 8192
"""Blocks that are hashed between two steps: some 6 ms."""

REQUEST_BLOCKS, LOOK_UP = 32, 8
"""To take in a request takes about as long as hashing so many blocks, and to look for so many of its own as to hash
one."""


class _Hashed(NamedTuple):
    """The latest request with hashes of all its blocks; not the request itself, whose grammar would stay."""

    root: bytes
    prompt_token_ids: TokenIds
    block_hashes: list[bytes]


class ArrivingRequests:
    """Requests in the order in which they came, until the full blocks of their tokens are hashed.

    Between two steps `BLOCKS_PER_TURN` blocks are hashed, however many requests come and however long they are.
    Cancellations and settings pass them. The blocks that a request has in common with the one before it, such as those
    of answers to one prompt, are hashed once.

    Args:
        block_size: None: nothing is hashed.
    """

    def __init__(self, block_size: int | None) -> None:
        self._block_size = block_size
        self._waiting: dict[int, Request] = {}
        self._left = BLOCKS_PER_TURN
        self._before: _Hashed | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def begin_turn(self) -> None:
        """A step is over, or none was needed."""
        self._left = BLOCKS_PER_TURN

    def put(self, request: Request) -> None:
        self._waiting[request.request_id] = request

    def cancel(self, request_id: int) -> bool:
        """Forget a request; False: there is none of that id."""
        return self._waiting.pop(request_id, None) is not None

    def take(self) -> list[Request]:
        """Hash what is left of the turn, and take the requests that are through."""
        taken: list[Request] = []
        for request in self._waiting.values():
            if self._left <= 0:
                break
            if self._block_size is not None and shares_blocks(request) and not self._hash(request, self._block_size):
                break
            self._left -= REQUEST_BLOCKS + len(request.block_hashes) // LOOK_UP
            taken.append(request)
        for request in taken:
            del self._waiting[request.request_id]
        return taken

    def _hash(self, request: Request, block_size: int) -> bool:
        """Hash blocks of a request; True: it has the hashes of all of them."""
        if not request.block_hashes and self._before is not None:
            request.block_hashes = _common(request, self._before, block_size)
        hashed, num_blocks = len(request.block_hashes), request.num_tokens // block_size
        count = min(num_blocks - hashed, self._left)
        if count:
            hash_blocks(request, (hashed + count) * block_size, block_size)
            self._left -= count
        if hashed + count < num_blocks:
            return False
        self._before = _Hashed(root_of(request), request.prompt_token_ids, request.block_hashes)
        return True


def _common(request: Request, before: _Hashed, block_size: int) -> list[bytes]:
    """Return the hashes of the leading blocks that the prompts of two requests have in common."""
    if root_of(request) != before.root:
        return []
    one, other = request.prompt_token_ids, before.prompt_token_ids
    if one is other:
        return before.block_hashes[: len(one) // block_size]
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    num_equal = int(differs.argmax()) if differs.any() else length
    return before.block_hashes[: num_equal // block_size]

"""A bound on wrong API keys, by peer address.

Each refusal is a response, a report and a line of the access log: a client that tries keys must not fill them. A key
that was right a short time ago is checked whatever others at its address do: clients behind one address translation
share it.
"""

from __future__ import annotations

from collections import OrderedDict

PER_S = 10.0
"""Wrong keys per second of one address, in the long run."""

BURST = 100.0
"""Most wrong keys of one address at once."""

MAX_ADDRESSES = 10_000
MAX_RIGHT = 10_000
"""Most addresses with wrong keys, and most right keys, that are remembered; the oldest are forgotten."""


class WrongKeys:
    """A token bucket for each address. `now`: seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Address -> wrong keys that it may still send, and when that was."""
        self._right: OrderedDict[int, None] = OrderedDict()
        """Python's keyed hashes of right keys: no key is kept."""

    def refuses(self, address: str, key: str, now: float) -> bool:
        """Returns whether a key of this address is refused without a look at it."""
        return address in self._buckets and self._left(address, now) < 1 and hash(key) not in self._right

    def wrong(self, address: str, now: float) -> None:
        """Notes a missing or wrong key."""
        self._buckets[address] = max(0.0, self._left(address, now) - 1), now
        self._buckets.move_to_end(address)
        if len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)

    def right(self, key: str) -> None:
        """Notes a right key."""
        number = hash(key)
        self._right[number] = None
        self._right.move_to_end(number)
        if len(self._right) > MAX_RIGHT:
            self._right.popitem(last=False)

    def _left(self, address: str, now: float) -> float:
        left, at = self._buckets.get(address, (BURST, now))
        return min(BURST, left + (now - at) * PER_S)

"""A bound on wrong API keys, by peer address.

Each refusal is a response, a report and a line of the access log: a client that tries keys must not fill them. Right
keys pass whatever others at their address send: clients behind one proxy or address translation share it.
"""

from __future__ import annotations

from collections import OrderedDict

PER_S = 10.0
"""Wrong keys per second of one address, in the long run."""

BURST = 100.0
"""Most wrong keys of one address at once."""

MAX_ADDRESSES = 10_000
"""Most addresses with wrong keys that are remembered; the oldest are forgotten."""


class WrongKeys:
    """A token bucket for each address."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Address -> wrong keys that it may still send, and when that was."""

    def too_many(self, address: str, now: float) -> bool:
        """Notes a missing or wrong key; returns whether the address sends too many. Args: now: seconds of one monotonic
        clock."""
        left, at = self._buckets.get(address, (BURST, now))
        left = min(BURST, left + (now - at) * PER_S)
        if left < 1:
            return True
        self._buckets[address] = left - 1, now
        self._buckets.move_to_end(address)
        if len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)
        return False

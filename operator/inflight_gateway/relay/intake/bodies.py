"""Memory for request bodies in one relay process, and its bounds."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from inflight_gateway.settings import MAX_BODY_BYTES

MAX_BODIES_BYTES = 256 * 2**20
"""Most bytes of the bodies of all requests in flight, in all processes together: bodies are kept until their answers
are complete, to be sent again. While bodies come and go they take twice as much."""

MAX_OTHER_BYTES = 2**20
"""Longest body on a path that generates nothing."""

_KEYLESS_SHARE = 0.25
"""Share of the bound for services without API keys, and the rest is for clients with keys: neither fills the part of
the other."""

_OWNER_SHARE = 0.5
"""Share of its part for one API key, or one service without keys, but at least one body of the maximum size."""


def bodies_bytes_of_one(processes: int) -> int:
    """Returns the bytes of one process, which does not know those of others."""
    return MAX_BODIES_BYTES // processes


class BodyOwner(NamedTuple):
    """Who a body counts for. Attributes: keyed: a client with an API key. name: of the key, or of the service."""

    keyed: bool
    name: str


class Bodies:
    """Memory of the bodies of one process. Args: most: bytes that it may keep; each of the two parts may keep at least
    one body of the maximum size.

    Attributes:
        kept: bytes of all requests in flight.
    """

    def __init__(self, most: int) -> None:
        self._most = {
            True: max(MAX_BODY_BYTES, int(most * (1 - _KEYLESS_SHARE))),
            False: max(MAX_BODY_BYTES, int(most * _KEYLESS_SHARE)),
        }
        self._parts = {True: 0, False: 0}
        self._of_owners: Counter[BodyOwner] = Counter()

    @property
    def kept(self) -> int:
        return sum(self._parts.values())

    def is_over(self, owner: BodyOwner) -> bool:
        """Returns whether requests of this owner may keep no more."""
        most = self._most[owner.keyed]
        of_owner = max(MAX_BODY_BYTES, int(most * _OWNER_SHARE))
        return self._parts[owner.keyed] > most or self._of_owners[owner] > of_owner

    def add(self, count: int, owner: BodyOwner) -> None:
        """Counts bytes; a negative `count` frees them."""
        self._parts[owner.keyed] += count
        self._of_owners[owner] += count
        if not self._of_owners[owner]:
            del self._of_owners[owner]


class Received:
    """The body of one request while it is received, and its memory until the request ends.

    Attributes:
        size: bytes received so far.
    """

    def __init__(self, bodies: Bodies, owner: BodyOwner) -> None:
        self.size = 0
        self._bodies = bodies
        self._owner = owner
        self._parts: list[bytes] = []

    @property
    def is_over(self) -> bool:
        """True if the process keeps too much to go on with this request."""
        return self._bodies.is_over(self._owner)

    def take(self, data: bytes) -> None:
        """Keeps a part of the body."""
        self._parts.append(data)
        self.count(len(data))

    def count(self, size: int) -> None:
        """Counts a part that is kept elsewhere."""
        self.size += size
        self._bodies.add(size, self._owner)

    def whole(self) -> bytes:
        """Returns the body, which is complete."""
        body = b"".join(self._parts)
        self._parts.clear()
        return body

    def release(self) -> None:
        """Frees the memory of a request that has ended; may be called again."""
        self._parts.clear()
        self._bodies.add(-self.size, self._owner)
        self.size = 0

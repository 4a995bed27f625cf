"""Memory for request bodies in one relay process, and its bounds."""

from __future__ import annotations

from collections import Counter

from inflight_gateway.relay.heads import Headers, find
from inflight_gateway.settings import MAX_BODY_BYTES

MAX_BODIES_BYTES = 256 * 2**20
"""Most bytes of the bodies of all requests in flight, in all processes together: bodies are kept until their answers
are complete, to be sent again. While bodies come and go they take twice as much in the relay and in Envoy: 1 GiB each
is enough."""

CHECKED_BYTES = 256 * 2**10
"""Bodies with more bytes are read only after a check of the API key, which takes one round trip to the picker. If a
body's length is unknown, this part of it is read before."""

_UNCHECKED_SHARE = 0.25
"""Share of the bound for bodies that are being received without a check. Above it smaller bodies are checked as well:
otherwise many connections that each send a part of a small body would fill the memory without a key."""

_KEY_SHARE = 0.5
"""Share of the bound for the requests of one API key, but at least one body of the maximum size."""


def bodies_bytes_of_one(processes: int) -> int:
    """Returns the bytes of one process, which does not know those of others: at least one body of the maximum size."""
    return max(MAX_BODY_BYTES, MAX_BODIES_BYTES // processes)


class Bodies:
    """Memory of the bodies of one process. Args: most: bytes that it may keep.

    Attributes:
        kept: bytes of all requests in flight.
        unchecked: bytes of requests that are being received and whose API key was not checked.
    """

    def __init__(self, most: int) -> None:
        self.kept = 0
        self.unchecked = 0
        self._most = most
        self._most_unchecked = int(most * _UNCHECKED_SHARE)
        self._most_of_key = max(MAX_BODY_BYTES, int(most * _KEY_SHARE))
        self._of_keys: Counter[int] = Counter()

    @property
    def much_unchecked(self) -> bool:
        return self.unchecked > self._most_unchecked

    def is_over(self, key: int | None) -> bool:
        """Returns whether a request with this key may keep no more."""
        return self.kept > self._most or (key is not None and self._of_keys[key] > self._most_of_key)

    def add(self, count: int, key: int | None) -> None:
        self.kept += count
        if key is not None:
            self._of_keys[key] += count
            if not self._of_keys[key]:
                del self._of_keys[key]


class Received:
    """The body of one request while it is received, and its memory until the request ends. A request without an API key
    counts for no key: a service without keys may have many clients.

    Attributes:
        size: bytes received so far.
        check_begun: the check of its API key has begun.
    """

    def __init__(self, bodies: Bodies, headers: Headers) -> None:
        self.size = 0
        self.check_begun = False
        self._bodies = bodies
        self._parts: list[bytes] = []
        self._unchecked: int | None = 0
        given = find(headers, b"authorization"), find(headers, b"api-key")
        self._key = None if given == (None, None) else hash(given)

    @property
    def is_over(self) -> bool:
        """True if the process keeps too much to go on with this request."""
        return self._bodies.is_over(self._key)

    @property
    def needs_check(self) -> bool:
        return not self.check_begun and (self.size > CHECKED_BYTES or self._bodies.much_unchecked)

    def take(self, data: bytes) -> None:
        self._parts.append(data)
        self.size += len(data)
        self._bodies.add(len(data), self._key)
        if self._unchecked is not None:
            self._unchecked += len(data)
            self._bodies.unchecked += len(data)

    def checked(self) -> None:
        """Counts the body as checked: the key was checked, or will be with the whole body."""
        if self._unchecked is not None:
            self._bodies.unchecked -= self._unchecked
            self._unchecked = None

    def whole(self) -> bytes:
        """Returns the body, which is complete."""
        self.checked()
        body = b"".join(self._parts)
        self._parts.clear()
        return body

    def release(self) -> None:
        """Frees the memory of a request that has ended; may be called again."""
        self.checked()
        self._parts.clear()
        self._bodies.add(-self.size, self._key)
        self.size = 0

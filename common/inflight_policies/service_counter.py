"""The client with the least service: the virtual token counters of Sheng et al. 2024, "Fairness in Serving Large
Language Models" (OSDI), for tenants and service classes."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

from inflight_policies.lazy_heap import LazyHeap

PROMPT_TOKEN = 1
OUTPUT_TOKEN = 2
"""Weight of a token: the paper's w_p and w_q, after the usual prices of hosted models."""

MAX_DEBTORS = 16_384
"""Clients that neither wait nor decode and are still remembered because they are ahead of the others."""


class _Counter:
    """Account of a client: at clock c it has been served `base + rate * c`.

    Attributes:
        rate: service for each count of the clock; 0 when nothing decodes.
        unit: amount that a unit of service adds.
        rank: its place among waiting clients with equal service; None: it does not wait.
        heap: the heap it is in: of clients that wait and grow at its rate, or of clients that rest. Its key there may
            be older than the last charges.
    """

    __slots__ = ("base", "heap", "rank", "rate", "unit")

    def __init__(self, base: int, unit: int) -> None:
        self.base = base
        self.rate = 0
        self.unit = unit
        self.rank: int | None = None
        self.heap: LazyHeap[str] | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Key of the client in a heap."""
        return self.base, -1 if self.rank is None else self.rank

    def at(self, clock: int) -> int:
        return self.base + self.rate * clock

    def stays_behind(self, other: _Counter, clock: int) -> float:
        """Returns a clock up to which this client is behind another that it is behind now, while neither is charged."""
        gain = other.rate - self.rate
        return math.inf if gain <= 0 else clock + max(0, (self.at(clock) - other.at(clock) - 1) // gain)

    def set_rate(self, rate: int, clock: int) -> None:
        self.base += (self.rate - rate) * clock
        self.rate = rate

    def set_unit(self, unit: int, clock: int) -> None:
        self.set_rate(self.rate // self.unit * unit, clock)
        self.unit = unit


class ServiceCounters:
    """A counter for each client: prompt tokens at admission, output tokens as they are generated.

    The rules are the paper's. Of the clients with requests waiting, the one with the least service is next. A client
    that starts waiting is lifted to the level: the least service among those that wait, or, where none does, that of
    the client that waited last. So what was not asked for is not saved up. For two clients that wait all the while, the
    service between any two moments differs by at most 2 max(w_p L_input, w_q M), with prompts of at most L_input tokens
    and M tokens in the KV cache.

    Service is an integer, so it is the same however its sum was split: floats would let the order depend on that, and a
    counter that only grows would lose the small additions in the end.

    Decodes cost nothing while they go on. Clients with as many of them (of equal units) grow at the same rate, so the
    order among those never changes by itself: one heap for each rate, and the least is that of the heaps' heads. With
    n requests decoding, tenants can have no more than about sqrt(2 n) different rates.

    A client that neither waits nor decodes and is not above the level is forgotten when another client starts waiting:
    on its return it would be lifted anyway, as the level never falls. (Where its prefill is still under way then, it
    stands at the level when its decode starts.) Beyond `MAX_DEBTORS` of those that are above, the smallest debts are
    forgiven. So the memory is that of the clients that wait and decode, and no more than that many besides.

    Args:
        units: units of clients whose tokens do not count 1; `unit_of_weight` makes them.
        most_kept: clients that neither wait nor decode and are remembered though they are not above the level. Above
            0 for a user that does not say which clients decode: their tokens are charged later.
        charged_rank: added to the rank of a waiting client whose service is not that of its lift alone. So lifted
            clients come first among equal ones: one that floods does not precede an occasional one. More than any rank.
    """

    def __init__(self, units: dict[str, int] | None = None, most_kept: int = 0, charged_rank: int = 0) -> None:
        self._units = units or {}
        self._most_kept = most_kept
        self._charged_rank = charged_rank
        self._counters: dict[str, _Counter] = {}
        self._waiting: dict[int, LazyHeap[str]] = {}
        """Waiting clients by rate."""
        self._resting: LazyHeap[str] = LazyHeap()
        self._last_waiting = _Counter(0, 1)

    def __len__(self) -> int:
        """Number of clients that are remembered."""
        return len(self._counters)

    def __contains__(self, client: str) -> bool:
        return client in self._counters

    def service(self, client: str, clock: int) -> int:
        """Returns the service of a client that is remembered, in units of `PROMPT_TOKEN` times its unit."""
        return self._counters[client].at(clock)

    def least(self, clock: int) -> str | None:
        """Returns the waiting client with the least service; of equal ones the one with the smallest rank."""
        least, least_client = None, None
        for rate, heap in self._waiting.items():
            if (first := self._first(heap)) is not None:
                (base, rank), client = first
                service = base + rate * clock, rank
                if least is None or service < least:
                    least, least_client = service, client
        return least_client

    def firsts(self, count: int, clock: int) -> tuple[list[str], float]:
        """Returns the waiting clients with the least service, in order; all where fewer wait. And a clock up to which
        they are the same, while nothing else happens to any client."""
        found: list[str] = []
        while len(found) < count and (least := self.least(clock)) is not None:
            self._waiting[self._counters[least].rate].remove(least)
            found.append(least)
        counters = [self._counters[client] for client in found]
        until = math.inf
        if len(self._waiting) > 1:
            until = min((after.stays_behind(before, clock) for before, after in pairwise(counters)), default=until)
            for heap in self._waiting.values():
                if (first := self._first(heap)) is not None:
                    until = min(until, self._counters[first[1]].stays_behind(counters[-1], clock))
        for client, counter in zip(found, counters, strict=True):
            self._waiting[counter.rate].push(client, counter.key)
        return found, until

    def start_waiting(self, client: str, rank: int, clock: int, unit: int | None = None) -> None:
        """Adds a client whose first request waits. Args: rank: unlike any other client's. unit: None: as before."""
        level = self.level(clock)
        counter = self._counters.get(client)
        if counter is None:
            counter = self._counters[client] = _Counter(level, self._units.get(client, 1))
        elif (ahead := counter.at(clock) - level) >= 0:
            rank += self._charged_rank
        else:
            counter.base -= ahead
        if unit is not None and unit != counter.unit:
            counter.set_unit(unit, clock)
        counter.rank = rank
        self._place(client, counter)
        self._forget(level)

    def stop_waiting(self, client: str) -> None:
        """Removes a client from the waiting ones: none of its requests waits any more."""
        counter = self._last_waiting = self._counters[client]
        counter.rank = None
        self._place(client, counter)

    def admitted(self, client: str, num_tokens: int, clock: int) -> None:
        """Charges a prefill that will compute this many prompt tokens, and sample one."""
        self.charge(client, PROMPT_TOKEN * num_tokens + OUTPUT_TOKEN, clock)

    def charge(self, client: str, service: int, clock: int) -> None:
        """Charges service to a client. Args: service: in units of `PROMPT_TOKEN`."""
        counter = self._counter(client, clock)
        counter.base += service * counter.unit
        if counter.rank is not None and counter.rank < self._charged_rank:
            counter.rank += self._charged_rank
        if counter.heap is None:
            self._place(client, counter)

    def decode_started(self, client: str, clock: int) -> None:
        counter = self._counter(client, clock)
        counter.set_rate(counter.rate + OUTPUT_TOKEN * counter.unit, clock)
        self._place(client, counter)

    def decode_ended(self, client: str, clock: int) -> None:
        counter = self._counter(client, clock)
        counter.set_rate(counter.rate - OUTPUT_TOKEN * counter.unit, clock)
        self._place(client, counter)

    def set_unit(self, client: str, unit: int, clock: int) -> None:
        """Count a client's tokens differently from now on."""
        self._units[client] = unit
        counter = self._counters.get(client)
        if counter is not None:
            counter.set_unit(unit, clock)
            self._place(client, counter)

    def _counter(self, client: str, clock: int) -> _Counter:
        """Returns a client's counter; for an unknown client, a new one at the level."""
        counter = self._counters.get(client)
        if counter is None:
            counter = self._counters[client] = _Counter(self.level(clock), self._units.get(client, 1))
        return counter

    def level(self, clock: int) -> int:
        """Returns the least service of the waiting clients; if none waits, that of the client that waited last."""
        least = self.least(clock)
        return (self._last_waiting if least is None else self._counters[least]).at(clock)

    def _place(self, client: str, counter: _Counter) -> None:
        """Put a client where it belongs after its counter or its rank has changed."""
        before, after = counter.heap, None
        if counter.rank is not None:
            after = self._waiting.get(counter.rate)
            if after is None:
                after = self._waiting[counter.rate] = LazyHeap()
            after.push(client, counter.key)
        elif counter.rate == 0:
            after = self._resting
            after.push(client, counter.key)
        if before is not None and before is not after:
            before.remove(client)
            if len(self._waiting) > 1 and not before:
                self._waiting = {rate: heap for rate, heap in self._waiting.items() if heap}
        counter.heap = after

    def _first(self, heap: LazyHeap[str]) -> tuple[tuple[int, ...], str] | None:
        """Returns the first of a heap. A charge leaves its client where it is, as most clients that are charged stop
        waiting or start again before it matters; keys only grow by charges, so it is enough to mend the first."""
        while (first := heap.first()) is not None:
            key, client = first
            now = self._counters[client].key
            if key == now:
                return first
            heap.push(client, now)
        return None

    def _forget(self, level: int) -> None:
        resting = self._resting
        if len(resting) <= self._most_kept:
            return
        while (first := self._first(resting)) is not None:
            (service, _), client = first
            if len(resting) <= (MAX_DEBTORS if service > level else self._most_kept):
                return
            resting.remove(client)
            del self._counters[client]


@lru_cache(maxsize=1024)
def unit_of_weight(weight: float) -> int:
    """Returns the amount that a unit of service counts for a client of this weight: 1 / weight in fixed point, rounded
    up.

    An integer, so that sums are exact and stay small however often weights change, as those of fractions would not.
    Shares follow weights from 1e-6 to 1e6 more closely than a float could say.
    """
    numerator, denominator = weight.as_integer_ratio()
    return -(-(denominator << 64) // numerator)

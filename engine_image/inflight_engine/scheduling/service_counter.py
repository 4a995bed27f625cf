"""Who has been served least: the virtual token counters of Sheng et al. 2024, "Fairness in Serving Large Language
Models" (OSDI), for the tenants of the `fair` policy and, with weights, for the service classes."""

from __future__ import annotations

from inflight_engine.scheduling.lazy_heap import LazyHeap

PROMPT_TOKEN = 1
OUTPUT_TOKEN = 2
"""What a token counts: the paper's w_p and w_q, after the usual prices of hosted models."""

MAX_DEBTORS = 16_384
"""Clients that neither wait nor decode and are still remembered because they are ahead of the others."""


class _Counter:
    """One client's account.

    Attributes:
        service: what it has been served up to `clock`.
        unit: what one unit of service adds.
    """

    __slots__ = ("clock", "num_decoding", "service", "unit")

    def __init__(self, service: int, unit: int, clock: int) -> None:
        self.service = service
        self.unit = unit
        self.clock = clock
        self.num_decoding = 0

    def settle(self, clock: int) -> int:
        """Add what its decodes generated since it was last asked."""
        if self.num_decoding:
            self.service += OUTPUT_TOKEN * self.unit * self.num_decoding * (clock - self.clock)
        self.clock = clock
        return self.service


class ServiceCounters:
    """One counter for each client: prompt tokens at admission, output tokens as they are generated.

    The rules are the paper's. Of the clients with requests waiting, the one with the least service is next. A client
    that starts waiting is lifted to the level: the least service among those that wait, or, where none does, that of
    the client that waited last. So what was not asked for is not saved up. For two clients that wait all the while, the
    service between any two moments differs by at most 2 max(w_p L_input, w_q M), with prompts of at most L_input tokens
    and M tokens in the KV cache.

    Service is an integer, so it is the same however often it was brought up to date in between: floats would let the
    order depend on that, and a counter that only grows would lose the small additions in the end.

    Decodes cost nothing while they go on: each counter holds how many it has, and is brought up to date when it is
    looked at. Counters only grow, so the value with which a client stands in the heap is never above its true one, and
    the first client whose value is up to date is the least.

    A client that neither waits nor decodes and is not above the level is forgotten when somebody else starts waiting:
    on its return it would be lifted anyway, as the level never falls. (Where its prefill is still under way then, it
    stands at the level when its decode starts.) Beyond `MAX_DEBTORS` of those that are above, the smallest debts are
    forgiven. So the memory is that of the clients that wait and decode, and no more than that many besides.

    Args:
        units: of clients whose tokens do not count 1; `unit_of_weight` makes them.
    """

    def __init__(self, units: dict[str, int] | None = None) -> None:
        self._units = units or {}
        self._counters: dict[str, _Counter] = {}
        self._waiting: LazyHeap[str] = LazyHeap()
        self._resting: LazyHeap[str] = LazyHeap()
        self._last_waiting = _Counter(0, 1, 0)
        self._clock = 0

    def __len__(self) -> int:
        """Clients remembered."""
        return len(self._counters)

    def least(self, clock: int) -> str | None:
        """The waiting client with the least service; of equal ones the one with the smallest rank."""
        self._clock = clock
        waiting = self._waiting
        while (first := waiting.first()) is not None:
            (service, rank), client = first
            now = self._counters[client].settle(clock)
            if now == service:
                return client
            waiting.push(client, (now, rank))
        return None

    def start_waiting(self, client: str, rank: int, clock: int) -> None:
        """The first of its requests waits. `rank`: unlike that of any other client."""
        level = self._level(clock)
        counter = self._counter(client, clock)
        counter.service = max(counter.settle(clock), level)
        if client in self._resting:
            self._resting.remove(client)
        self._forget(level)
        self._waiting.push(client, (counter.service, rank))

    def stop_waiting(self, client: str) -> None:
        """None of its requests waits any more."""
        self._waiting.remove(client)
        self._last_waiting = self._counters[client]
        self._rest(client, self._last_waiting)

    def admitted(self, client: str, num_tokens: int, clock: int) -> None:
        """A prefill will compute this many prompt tokens, and sample one."""
        counter = self._counter(client, clock)
        counter.service += (PROMPT_TOKEN * num_tokens + OUTPUT_TOKEN) * counter.unit
        self._rest(client, counter)

    def decode_started(self, client: str, clock: int) -> None:
        counter = self._counter(client, clock)
        counter.settle(clock)
        counter.num_decoding += 1
        if client in self._resting:
            self._resting.remove(client)

    def decode_ended(self, client: str, clock: int) -> None:
        self._clock = clock
        counter = self._counters[client]
        counter.settle(clock)
        counter.num_decoding -= 1
        self._rest(client, counter)

    def set_unit(self, client: str, unit: int, clock: int) -> None:
        """Count a client's tokens differently from now on."""
        self._clock = clock
        self._units[client] = unit
        counter = self._counters.get(client)
        if counter is not None:
            counter.settle(clock)
            counter.unit = unit

    def _counter(self, client: str, clock: int) -> _Counter:
        """A client's counter; of one that is not known, a new one at the level."""
        self._clock = clock
        counter = self._counters.get(client)
        if counter is None:
            counter = self._counters[client] = _Counter(self._level(clock), self._units.get(client, 1), clock)
        return counter

    def _level(self, clock: int) -> int:
        least = self.least(clock)
        return (self._last_waiting if least is None else self._counters[least]).settle(clock)

    def _rest(self, client: str, counter: _Counter) -> None:
        """While a client neither waits nor decodes its service stands still: it may become one to forget."""
        if counter.num_decoding == 0 and client not in self._waiting:
            self._resting.push(client, (counter.service,))

    def _forget(self, level: int) -> None:
        resting = self._resting
        while (first := resting.first()) is not None:
            (service,), client = first
            if service > level and len(resting) <= MAX_DEBTORS:
                return
            resting.remove(client)
            del self._counters[client]


def unit_of_weight(weight: float) -> int:
    """What a unit of service counts for a client of this weight: 1 / weight in fixed point, rounded up.

    An integer, so that sums are exact and stay small however often weights change, as those of fractions would not.
    Shares follow weights from 1e-6 to 1e6 more closely than a float could say.
    """
    numerator, denominator = weight.as_integer_ratio()
    return -(-(denominator << 64) // numerator)

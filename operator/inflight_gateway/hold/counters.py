"""Fair scheduling: the virtual token counters of Sheng et al. 2024, "Fairness in Serving Large Language
Models" (OSDI), with weights."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

PROMPT_TOKEN = 1
OUTPUT_TOKEN = 2
"""Weight of a token, as in the engine: the paper's w_p and w_q, after the usual prices of hosted models."""

MAX_DEBTORS = 16_384
"""Clients without waiting requests that are remembered because they are ahead of the others."""


class VirtualCounters:
    """Tokens served to each client, divided by its weight.

    A client that starts waiting is lifted to the least counter of the waiting clients or, without any, to that of the
    client that waited last: unused capacity does not accumulate as credit. So a client that always has requests waiting
    is next after at most its share of what the others are charged.
    """

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._rank: dict[str, int] = {}
        """Of clients that wait: when they started to."""
        self._charged: set[str] = set()
        """Of clients that wait: those whose counter is due to what they were charged, and not to being lifted."""
        self._heap: list[tuple[float, bool, int, str]] = []
        """(counter, charged, rank, client). A counter only grows, so an entry is at most its client's counter; it is
        corrected when it surfaces."""
        self._level = 0.0
        self._ranks = 0

    def least(self) -> str | None:
        """The waiting client with the least service; among equal ones the one with the longest wait, except that lifted
        clients come first: a flooding client does not precede an occasional one."""
        heap = self._heap
        while heap:
            served, _, rank, client = heap[0]
            if self._rank.get(client) != rank:
                heappop(heap)
            elif self._served[client] > served:
                heapreplace(heap, (self._served[client], client in self._charged, rank, client))
            else:
                return client
        return None

    def lead(self, client: str) -> float:
        """Of a waiting client: how far its counter is ahead of the least one."""
        least = self.least()
        return 0.0 if least is None else self._served[client] - self._served[least]

    def start_waiting(self, client: str, weight: float) -> None:
        """The client starts waiting."""
        least = self.least()
        level = self._level if least is None else self._served[least]
        own = self._served.get(client)
        served = self._served[client] = level if own is None else max(level, own)
        charged = own is not None and own >= level
        if charged:
            self._charged.add(client)
        self._weights[client] = weight
        self._ranks += 1
        self._rank[client] = self._ranks
        heappush(self._heap, (served, charged, self._ranks, client))
        self._forget(level)

    def stop_waiting(self, client: str) -> None:
        """The client has no waiting request any more."""
        self._level = max(self._level, self._served[client])
        del self._rank[client]
        self._charged.discard(client)
        if len(self._heap) > 2 * len(self._rank) + 8:
            self._heap = [(self._served[each], each in self._charged, rank, each) for each, rank in self._rank.items()]
            heapify(self._heap)

    def charge(self, client: str, tokens: float) -> None:
        """Charges computed tokens to a client, in units of `PROMPT_TOKEN`. A client without a counter was not ahead of
        the others and is not charged."""
        if client in self._served:
            self._served[client] += tokens / self._weights[client]
            if tokens and client in self._rank:
                self._charged.add(client)

    def _forget(self, level: float) -> None:
        """Removes clients if there are more than `MAX_DEBTORS`: those that would be lifted on their return, and at
        least half of all, the smallest debts first."""
        if len(self._served) - len(self._rank) <= MAX_DEBTORS:
            return
        resting = sorted((client for client in self._served if client not in self._rank), key=self._served.__getitem__)
        surplus = len(resting) - MAX_DEBTORS // 2
        for place, client in enumerate(resting):
            if place >= surplus and self._served[client] > level:
                break
            del self._served[client], self._weights[client]

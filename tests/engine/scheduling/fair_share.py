"""The virtual token counters of Sheng et al. 2024, "Fairness in Serving Large Language Models" (OSDI), step by step.

Nothing is deferred or settled later here: every counter is brought up to date with every token, so it can show where
code that is cleverer about it goes wrong. Shares are exact while weights are powers of two.
"""

from __future__ import annotations

# w_p and w_q: an output token costs twice as much as a prompt token.
PROMPT_TOKEN, OUTPUT_TOKEN = 1, 2


class FairShare:
    """A counter for each client: a tenant of a service class, or a class.

    Attributes:
        weights: weights of clients whose tokens do not count 1; what was served before a change keeps counting as it
            did.
    """

    def __init__(self, weights: dict[str, float]) -> None:
        self.weights = weights
        self._served: dict[str, float] = {}
        self._waiting: dict[str, None] = {}
        self._decoding: dict[str, int] = {}
        self._waited_last: str | None = None

    def least(self) -> float:
        """Service of the waiting client that has been served least."""
        return min(self._served[client] for client in self._waiting)

    def in_order(self, ranks: dict[str, int] | None = None) -> list[str]:
        """The waiting clients, that first which was served least; of equal ones that of the smallest rank, or the one
        that has been waiting for longest without a break."""
        clients = sorted(self._waiting, key=ranks.__getitem__) if ranks else list(self._waiting)
        return sorted(clients, key=self._served.__getitem__)

    def starts_waiting(self, client: str) -> None:
        """It had no request waiting: what it did not ask for is not saved up."""
        level = self._level()
        # Who neither waits nor decodes would be lifted to the level anyway on its return.
        for other in [each for each in self._served if each not in self._waiting and not self._decoding.get(each)]:
            if self._served[other] <= level:
                del self._served[other]
        self._served[client] = max(self._served.get(client, level), level)
        self._waiting[client] = None

    def stops_waiting(self, client: str) -> None:
        del self._waiting[client]
        self._waited_last = client

    def admitted(self, client: str, num_tokens: int) -> None:
        """Prompt tokens that its prefill computes, and the one that it samples."""
        self._serve(client, PROMPT_TOKEN * num_tokens + OUTPUT_TOKEN)

    def decode_starts(self, client: str) -> None:
        self._decoding[client] = self._decoding.get(client, 0) + 1
        self._serve(client, 0)

    def decode_ends(self, client: str) -> None:
        self._decoding[client] -= 1

    def generated(self, client: str, count: int = 1) -> None:
        """Output tokens."""
        self._serve(client, OUTPUT_TOKEN * count)

    def _serve(self, client: str, cost: int) -> None:
        if client not in self._served:
            self._served[client] = self._level()
        self._served[client] += cost / self.weights.get(client, 1.0)

    def _level(self) -> float:
        if self._waiting:
            return self.least()
        return self._served.get(self._waited_last, 0.0) if self._waited_last is not None else 0.0

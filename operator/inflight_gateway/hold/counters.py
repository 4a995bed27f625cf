"""Virtual token counters of clients that the gateway holds requests of, with weights."""

from __future__ import annotations

from inflight_policies.service_counter import MAX_DEBTORS, ServiceCounters, unit_of_weight

_UNIT = unit_of_weight(1.0)
_CHARGED = 1 << 62
"""More than clients ever start waiting."""


class VirtualCounters:
    """Tokens served to each client, divided by its weight: the engine's `ServiceCounters`, but answers are charged when
    they are reported.

    Of clients with equal counters, those that were lifted and not charged come first, then the one with the longest
    wait.
    """

    def __init__(self) -> None:
        self._counters = ServiceCounters(most_kept=MAX_DEBTORS, charged_rank=_CHARGED)
        self._starts = 0

    def least(self) -> str | None:
        """The waiting client with the least service."""
        return self._counters.least(0)

    def lead(self, client: str) -> float:
        """Of a waiting client: how far its counter is ahead of the least one, in tokens by weight."""
        return (self._counters.service(client, 0) - self._counters.level(0)) / _UNIT

    def start_waiting(self, client: str, weight: float) -> None:
        """The client starts waiting."""
        self._starts += 1
        self._counters.start_waiting(client, self._starts, 0, unit_of_weight(weight))

    def stop_waiting(self, client: str) -> None:
        """The client has no waiting request any more."""
        self._counters.stop_waiting(client)

    def charge(self, client: str, tokens: int) -> None:
        """Charges computed tokens to a client, in units of `PROMPT_TOKEN`. A client without a counter was not ahead of
        the others and is not charged."""
        if tokens and client in self._counters:
            self._counters.charge(client, tokens, 0)

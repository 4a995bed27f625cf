"""Limits of one tenant at one service: requests and tokens per minute, and concurrent requests. Pure.

Burst rule: a bucket holds one minute's limit, and each taking returns 60 s later. So a tenant may use its whole minute
at once, and no 60 s window exceeds the limit. A bucket that refills at a steady rate would admit up to twice the limit
in the first minute with the same burst.

Takings are kept in slots of a quarter of a second, and a slot returns as a whole when its newest taking is 60 s old: a
constantly requesting tenant gets at least 60/60.25 of its limit, 99.6%, and memory is at most 241 numbers a bucket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.types import RateLimits

WINDOW_S = 60.0
SLOT_S = 0.25
SWEEP_S = 60.0
_SLOTS = int(WINDOW_S / SLOT_S)


class Minute:
    """Takings of the last 60 s."""

    __slots__ = ("_slots", "used")

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        """Number of a slot -> amount taken in it, oldest first."""
        self.used = 0

    def add(self, amount: int, now: float) -> int:
        """Takes `amount`; returns the slot, for `give_back`."""
        self.forget(now)
        # Callers read the clock before they wait: a slightly older time must not break the order.
        slot = max(math.floor(now / SLOT_S), next(reversed(self._slots), 0))
        self._slots[slot] = self._slots.get(slot, 0) + amount
        self.used += amount
        return slot

    def give_back(self, amount: int, slot: int) -> None:
        """Reverts part of a taking, unless it already returned."""
        if slot not in self._slots:
            return
        amount = min(amount, self._slots[slot])
        self._slots[slot] -= amount
        self.used -= amount

    def forget(self, now: float) -> None:
        """Drops takings older than 60 s."""
        oldest = math.floor(now / SLOT_S) - _SLOTS
        while self._slots:
            first = next(iter(self._slots))
            if first >= oldest:
                return
            self.used -= self._slots.pop(first)

    def wait(self, amount: int, limit: int, now: float) -> float:
        """Returns the seconds until `amount` fits under `limit`, if nothing else is taken; 0: now.

        More than the limit counts as the whole limit: a request above a minute's tokens is admitted when nothing else
        was taken, and its real usage delays later requests.
        """
        self.forget(now)
        excess = self.used + min(amount, limit) - limit
        if excess <= 0:
            return 0.0
        for slot, taken in self._slots.items():
            excess -= taken
            if excess <= 0:
                return self._back(slot, now)
        return WINDOW_S  # a limit of 0

    def reset(self, now: float) -> float:
        """Returns the seconds until the whole limit is available again, if nothing else is taken."""
        self.forget(now)
        return self._back(next(reversed(self._slots)), now) if self._slots else 0.0

    @staticmethod
    def _back(slot: int, now: float) -> float:
        return max(0.0, (slot + _SLOTS + 1) * SLOT_S - now)


class Limit(StrEnum):
    """The limit that rejects a request."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENT = "concurrent_requests"


@dataclass(frozen=True, slots=True)
class Standing:
    """State of a limit after a decision.

    Attributes:
        remaining: unused part of `limit`.
        reset_s: seconds until the whole limit is available again.
    """

    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one request.

    Attributes:
        refused_by: limit that rejects the request; None: it is admitted and charged.
        retry_after_s: seconds until it could be admitted; 0 if unknown.
        requests, tokens: state of these limits; None: no limit.
        slot: slot of the charge, for `Account.settle`.
    """

    refused_by: Limit | None = None
    retry_after_s: float = 0.0
    requests: Standing | None = None
    tokens: Standing | None = None
    slot: int = 0


@dataclass(slots=True)
class Account:
    """Account of a tenant at a service. Attributes: in_flight: its admitted, unfinished requests."""

    requests: Minute = field(default_factory=Minute)
    tokens: Minute = field(default_factory=Minute)
    in_flight: int = 0

    def admit(self, limits: RateLimits, tokens: int, now: float, *, always: bool = False) -> Verdict:
        """Charges a request to all limits, or to none. It then counts as in flight until the caller subtracts it.

        Args:
            tokens: from `charge_for`.
            always: charge it whatever the limits: another picker has admitted it.
        """
        refused, wait = (None, 0.0) if always else self._refusal(limits, tokens, now)
        slot = 0
        if refused is None:
            self.requests.add(1, now)
            slot = self.tokens.add(tokens, now)
            self.in_flight += 1
        requests = standing(self.requests, limits.requests_per_minute, now)
        return Verdict(refused, wait, requests, standing(self.tokens, limits.tokens_per_minute, now), slot)

    def refund(self, charged: int, slot: int) -> None:
        """Takes back the charge of a request. Args: charged, slot: its tokens and their slot, from its verdict."""
        self.requests.give_back(1, slot)
        self.tokens.give_back(charged, slot)

    def settle(self, charged: int, used: int, slot: int, now: float) -> None:
        """Corrects a charge by the real usage: an overcharge is returned, a shortfall is charged now.

        Args:
            slot: slot of the charge, from its verdict.
        """
        if used < charged:
            self.tokens.give_back(charged - used, slot)
        elif used > charged:
            self.tokens.add(used - charged, now)

    def idle(self, now: float) -> bool:
        """Returns whether a new account would give the same verdict."""
        self.requests.forget(now)
        self.tokens.forget(now)
        return not (self.in_flight or self.requests.used or self.tokens.used)

    def _refusal(self, limits: RateLimits, tokens: int, now: float) -> tuple[Limit | None, float]:
        most = limits.concurrent_requests
        if most is not None and self.in_flight >= most:
            return Limit.CONCURRENT, 0.0
        waits: list[tuple[float, Limit]] = []
        if limits.requests_per_minute is not None:
            waits.append((self.requests.wait(1, limits.requests_per_minute, now), Limit.REQUESTS))
        if limits.tokens_per_minute is not None:
            waits.append((self.tokens.wait(tokens, limits.tokens_per_minute, now), Limit.TOKENS))
        wait, limit = max(waits, default=(0.0, None))
        return (limit, wait) if wait > 0 else (None, 0.0)


class TenantKey(NamedTuple):
    service: ServiceKey
    tenant: str


class Accounts(dict[TenantKey, Account]):
    """The accounts of all tenants: a missing one is new. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._swept = 0.0

    def __missing__(self, key: TenantKey) -> Account:
        account = self[key] = Account()
        return account

    def sweep(self, now: float) -> None:
        """Removes accounts that are like new ones, each `SWEEP_S`."""
        if now - self._swept >= SWEEP_S:
            self._swept = now
            for key in [key for key, account in self.items() if account.idle(now)]:
                del self[key]


def standing(minute: Minute, limit: int | None, now: float) -> Standing | None:
    """Returns the state of a bucket; None without a limit."""
    return None if limit is None else Standing(limit, max(0, limit - minute.used), minute.reset(now))


def charge_for(tokens: int, limits: RateLimits) -> int:
    """Returns the charge at admission for an estimate of `tokens`.

    It is at most a minute's limit: a larger charge would be admitted no sooner, and could not be returned if too high.
    """
    return tokens if limits.tokens_per_minute is None else min(tokens, limits.tokens_per_minute)


def share(limits: RateLimits, among: int) -> RateLimits:
    """Returns the share of one of `among` processes that decide alone; at least 1 of each limit."""

    def part(limit: int | None) -> int | None:
        return None if limit is None else max(1, limit // among)

    return RateLimits(
        part(limits.requests_per_minute), part(limits.tokens_per_minute), part(limits.concurrent_requests)
    )

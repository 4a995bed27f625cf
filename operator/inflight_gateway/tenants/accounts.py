"""The accounts of all tenants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.tenants.limits import Account, Verdict
from inflight_gateway.types import RateLimits

SWEEP_S = 60.0


class TenantKey(NamedTuple):
    service: ServiceKey
    tenant: str


@dataclass(frozen=True, slots=True)
class Admission:
    """An admission request. Attributes: tokens: to charge (`limits.charge_for`)."""

    key: TenantKey
    limits: RateLimits
    tokens: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """The real usage of an admitted request. Attributes: charged, slot: tokens charged at admission, and their slot."""

    key: TenantKey
    charged: int
    used: int
    slot: int


class Accounts:
    """Accounts by tenant. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._accounts: dict[TenantKey, Account] = {}
        self._swept = 0.0

    def __len__(self) -> int:
        return len(self._accounts)

    def admit(self, admission: Admission, now: float, *, always: bool = False) -> Verdict:
        """Admits or rejects a request, and charges it if admitted. Args: always: it is not rejected."""
        self._sweep(now)
        return self._account(admission.key).admit(admission.limits, admission.tokens, now, always=always)

    def settle(self, settlement: Settlement, now: float) -> None:
        """Corrects a charge by the real usage."""
        self._account(settlement.key).settle(settlement.charged, settlement.used, settlement.slot, now)

    def refund(self, key: TenantKey, charged: int, slot: int) -> None:
        """Takes back a charge. Args: charged, slot: as in `Settlement`."""
        account = self._account(key)
        account.requests.give_back(1, slot)
        account.tokens.give_back(charged, slot)

    def resume(self, key: TenantKey) -> None:
        """Counts a request as in flight, at no charge."""
        self._account(key).in_flight += 1

    def release(self, key: TenantKey) -> None:
        """Counts a request as no longer in flight."""
        self._account(key).in_flight -= 1

    def in_flight(self) -> dict[TenantKey, int]:
        """Returns the requests in flight of tenants that have any."""
        return {key: account.in_flight for key, account in self._accounts.items() if account.in_flight}

    def _account(self, key: TenantKey) -> Account:
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account()
        return account

    def _sweep(self, now: float) -> None:
        """Removes inactive tenants periodically."""
        if now - self._swept >= SWEEP_S:
            self._swept = now
            self._accounts = {key: account for key, account in self._accounts.items() if not account.idle(now)}

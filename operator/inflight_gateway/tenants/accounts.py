"""The accounts of all tenants owned by this gateway, with their requests in flight at other gateways."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.tenants.limits import Account, Verdict
from inflight_gateway.types import RateLimits

PEER_SILENCE_S = 10.0
"""Seconds after which the in-flight requests of a silent gateway no longer count: it is considered dead."""

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


@dataclass(slots=True)
class _Entry:
    account: Account = field(default_factory=Account)
    elsewhere: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Gateway -> its requests in flight, and the time of that report."""


class Accounts:
    """Accounts by tenant. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._entries: dict[TenantKey, _Entry] = {}
        self._swept = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def admit(self, admission: Admission, now: float, peer: str | None = None) -> Verdict:
        """Admits or rejects a request. Args: peer: the gateway that received it; None: this one."""
        self._sweep(now)
        entry = self._entry(admission.key)
        for name in [name for name, (_, at) in entry.elsewhere.items() if now - at > PEER_SILENCE_S]:
            del entry.elsewhere[name]
        elsewhere = sum(count for count, _ in entry.elsewhere.values())
        verdict = entry.account.admit(admission.limits, admission.tokens, now, elsewhere)
        if peer is not None and verdict.refused_by is None:
            entry.account.in_flight -= 1
            entry.elsewhere[peer] = entry.elsewhere.get(peer, (0, now))[0] + 1, now
        return verdict

    def charge(self, admission: Admission, now: float) -> int:
        """Counts a request that another gateway admitted for this one, in case this one has to decide alone later."""
        entry = self._entry(admission.key)
        entry.account.in_flight += 1
        return entry.account.charge(admission.tokens, now)

    def add(self, key: TenantKey, requests: int, tokens: int, now: float) -> None:
        """Charges requests that another gateway admitted on its own."""
        account = self._entry(key).account
        account.requests.add(requests, now)
        account.tokens.add(tokens, now)

    def settle(self, settlement: Settlement, now: float) -> None:
        """Corrects a charge by the real usage."""
        entry = self._entry(settlement.key)
        entry.account.settle(settlement.charged, settlement.used, settlement.slot, now)

    def resume(self, key: TenantKey) -> None:
        """Counts an admitted request as in flight again: it starts another attempt."""
        self._entry(key).account.in_flight += 1

    def release(self, key: TenantKey) -> None:
        """Decrements the requests in flight here."""
        self._entry(key).account.in_flight -= 1

    def in_flight(self, key: TenantKey) -> int:
        """Returns a tenant's requests in flight at this gateway."""
        entry = self._entries.get(key)
        return entry.account.in_flight if entry is not None else 0

    def keys_in_flight(self) -> list[TenantKey]:
        """Returns the tenants with requests in flight at this gateway."""
        return [key for key, entry in self._entries.items() if entry.account.in_flight]

    def peer_has(self, peer: str, key: TenantKey, count: int, now: float) -> None:
        """Sets the requests in flight that another gateway reports."""
        entry = self._entry(key)
        if count:
            entry.elsewhere[peer] = count, now
        else:
            entry.elsewhere.pop(peer, None)

    def _entry(self, key: TenantKey) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
        return entry

    def _sweep(self, now: float) -> None:
        """Removes inactive tenants periodically."""
        if now - self._swept < SWEEP_S:
            return
        self._swept = now
        for key, entry in list(self._entries.items()):
            heard = [at for _, at in entry.elsewhere.values() if now - at <= PEER_SILENCE_S]
            if not heard and entry.account.idle(now):
                del self._entries[key]

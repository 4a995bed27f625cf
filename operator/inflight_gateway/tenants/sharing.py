"""Limits enforced across all gateways.

Each tenant of a service has one owner among the live gateways, by rendezvous hashing (Thaler and Ravishankar 1996):
when a gateway is added or removed, only its own tenants move. The others ask the owner, which decides and charges.
While the owner does not respond, each gateway enforces its share of the limits alone; its own admissions are also
charged to its own accounts, so earlier admissions count. The owner gets a report afterwards.

A tenant that moves starts with an empty account at its new owner, so it may get up to one more minute's limit then.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from inflight_gateway.tenants import wire
from inflight_gateway.tenants.accounts import Accounts, Admission, Settlement, TenantKey
from inflight_gateway.tenants.limits import Verdict, charge_for, share
from inflight_gateway.tenants.link import Link, OwnerAwayError
from inflight_gateway.types import RateLimits

REPORT_S = 3.0
"""Seconds between two reports to owners: well under `accounts.PEER_SILENCE_S`, so that long requests still count."""

NO_LIMITS = RateLimits()

Peers = Callable[[], Mapping[str, str]]
"""The other live gateways: pod name -> IP:PORT of the picker's HTTP port."""

Post = Callable[[str, bytes], Awaitable[bytes]]
"""A signed call of `wire.PATH` at IP:PORT. May raise OSError, TimeoutError or ValueError."""


@dataclass(frozen=True, slots=True)
class Grant:
    """An admitted request's charge.

    Attributes:
        owner: the gateway that decided; None: this one.
        slot: slot of the charge in this gateway's accounts; `verdict.slot` is the owner's.
        tokens: charged tokens.
    """

    key: TenantKey
    verdict: Verdict
    tokens: int
    slot: int
    owner: str | None = None


class SharedLimits:
    """Limits of all tenants.

    Args:
        name: name of this gateway's pod.
        peers: without any, this gateway decides alone.
        clock: seconds, monotonic.
    """

    def __init__(self, name: str, peers: Peers, post: Post, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._peers = peers
        self._post = post
        self._clock = clock
        self._accounts = Accounts()
        self._links: dict[tuple[str, str], Link] = {}

    def admit_here(self, key: TenantKey, limits: RateLimits, tokens: int, now: float) -> Grant | None:
        """Admits or rejects a request, and charges it if admitted. Args: tokens: estimate of prompt and answer. None:
        another gateway decides, see `admit`."""
        peers = self._peers() if limits != NO_LIMITS else {}
        owner = owner_of(key, (self._name, *peers)) if peers else self._name
        if owner == self._name:
            return self._alone(Admission(key, limits, charge_for(tokens, limits)), now)
        link = self._link(owner, peers[owner])
        return self._without(link, len(peers), key, limits, tokens, now) if link.away else None

    async def admit(self, key: TenantKey, limits: RateLimits, tokens: int, now: float) -> Grant:
        """Does the same as `admit_here`, and waits for the gateway that decides."""
        here = self.admit_here(key, limits, tokens, now)
        if here is not None:
            return here
        peers = self._peers()
        owner = owner_of(key, (self._name, *peers))
        link = self._link(owner, peers[owner])
        admission = Admission(key, limits, charge_for(tokens, limits))
        try:
            verdict, slot = await link.admit(admission)
        except OwnerAwayError:
            return self._without(link, len(peers), key, limits, tokens, now)
        return Grant(key, verdict, admission.tokens, slot, owner)

    def adopt(self, key: TenantKey) -> Grant:
        """Counts a request that is in flight already, at no charge."""
        self._accounts.resume(key)
        return Grant(key, Verdict(), 0, 0)

    def settle(self, grant: Grant, used: int) -> None:
        """Corrects the charge by the real usage in tokens."""
        if used == grant.tokens:
            return
        self._accounts.settle(Settlement(grant.key, grant.tokens, used, grant.slot), self._clock())
        link = self._link_of(grant)
        if link is not None:
            link.settle(Settlement(grant.key, grant.tokens, used, grant.verdict.slot))

    def release(self, grant: Grant) -> None:
        """Notes that the request is no longer in flight."""
        self._accounts.release(grant.key)
        self._touch(grant)

    def resume(self, grant: Grant) -> None:
        """Notes that the request is in flight again."""
        self._accounts.resume(grant.key)
        self._touch(grant)

    def answer(self, batch: wire.Batch, now: float) -> tuple[Verdict, ...]:
        """Applies another gateway's messages, and decides for it."""
        for said in batch.in_flight:
            self._accounts.peer_has(batch.gateway, said.key, said.count, now)
        for one in batch.alone:
            self._accounts.add(one.key, one.requests, one.tokens, now)
        for settlement in batch.settlements:
            self._accounts.settle(settlement, now)
        return tuple(self._accounts.admit(admission, now, batch.gateway) for admission in batch.admissions)

    async def run(self) -> None:
        """Reports requests in flight to owners, until cancelled."""
        try:
            while True:
                await asyncio.sleep(REPORT_S)
                self._report()
        finally:
            await asyncio.gather(*(link.close() for link in self._links.values()))

    def _report(self) -> None:
        peers = self._peers()
        self._links = {known: link for known, link in self._links.items() if peers.get(known[0]) == known[1]}
        for key in self._accounts.keys_in_flight():
            owner = owner_of(key, (self._name, *peers))
            if owner != self._name:
                self._link(owner, peers[owner]).touch(key)

    def _without(self, link: Link, peers: int, key: TenantKey, limits: RateLimits, tokens: int, now: float) -> Grant:
        """Decides on a share of the limits while the owner does not respond."""
        part = share(limits, peers + 1)
        admission = Admission(key, part, charge_for(tokens, part))
        grant = self._alone(admission, now)
        if grant.verdict.refused_by is None:
            link.admitted_alone(admission)
        return grant

    def _alone(self, admission: Admission, now: float) -> Grant:
        verdict = self._accounts.admit(admission, now)
        return Grant(admission.key, verdict, admission.tokens, verdict.slot)

    def _touch(self, grant: Grant) -> None:
        link = self._link_of(grant)
        if link is not None:
            link.touch(grant.key)

    def _link_of(self, grant: Grant) -> Link | None:
        address = self._peers().get(grant.owner) if grant.owner is not None else None
        return self._link(grant.owner, address) if grant.owner is not None and address is not None else None

    def _link(self, owner: str, address: str) -> Link:
        link = self._links.get((owner, address))
        if link is None:
            link = Link(owner, self._name, lambda content: self._post(address, content), self._accounts)
            self._links[owner, address] = link
        return link


def owner_of(key: TenantKey, gateways: Iterable[str]) -> str:
    """Returns the gateway that decides for a tenant: the same at all gateways with the same view of live gateways."""
    text = f"{key.service}/{key.tenant}"
    return max(gateways, key=lambda name: hashlib.blake2b(f"{name}\n{text}".encode(), digest_size=8).digest())

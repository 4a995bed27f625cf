"""Picks of a relay that no picker answers: the fewest requests of its own, and its share of the tenants' limits. Pure:
the clock is an argument."""

from __future__ import annotations

from collections.abc import Callable, Collection
from zlib import crc32

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.link.wire import Ask, Go, Refuse
from inflight_gateway.tenants import answers
from inflight_gateway.tenants.answer_lengths import FIRST_ANSWER
from inflight_gateway.tenants.limits import Accounts, TenantKey, charge_for, share
from inflight_gateway.types import Finished, RateLimits, Refusal, answering, no_replica, service_deleted


class Alone:
    """Picks by themselves.

    Args:
        in_flight: returns the requests of this process at an address.

    Attributes:
        relays: relay processes of all gateway pods, which share the limits without knowledge of each other.
    """

    def __init__(self, catalog: Catalog, in_flight: Callable[[str], int]) -> None:
        self.relays = 1
        self._catalog = catalog
        self._in_flight = in_flight
        self._accounts = Accounts()
        self._charged: dict[str, tuple[TenantKey, int, int]] = {}
        """Charges of requests in flight, by the request's id: the tokens and their slot."""

    def least(self, service: ServiceKey, request_id: str, avoid: Collection[str] = ()) -> list[str]:
        """Returns the addresses of a service's engines, the one with the fewest requests first."""
        config = self._catalog.services.get(service)
        apart = "Off" if config is None else config.apart
        every = [one.address for one in answering(self._catalog.endpoints_of(service), apart)]
        wanted = [address for address in every if address not in avoid]
        return sorted(wanted, key=lambda one: (self._in_flight(one), crc32(f"{request_id}{one}".encode())))

    def pick(self, ask: Ask, now: float) -> Go | Refuse:
        """Picks engines for an attempt. The first attempt of a request is charged to its tenant, until `ended`, unless
        a picker has admitted it."""
        config = self._catalog.services.get(ask.service)
        if config is None:
            return Refuse.of(ask.id, ask.attempt, service_deleted(ask.service))
        addresses = self.least(ask.service, ask.id, ask.avoid)
        if not addresses:
            return Refuse.of(ask.id, ask.attempt, none_ready(ask.service))
        headers: answers.Headers = ()
        limits = share(config.tenant(ask.tenant).limits, self.relays)
        if ask.attempt == 1 and not ask.admitted and limits != _UNLIMITED:
            key = TenantKey(ask.service, ask.tenant)
            most = FIRST_ANSWER if ask.body.max_tokens is None else ask.body.max_tokens
            tokens = charge_for(ask.body.prompt_tokens + ask.body.choices * most, limits)
            self._accounts.sweep(now)
            verdict = self._accounts[key].admit(limits, tokens, now)
            if verdict.refused_by is not None:
                return Refuse.of(ask.id, ask.attempt, answers.over_limit(config, ask.tenant, limits, verdict))
            self._charged[ask.id] = key, tokens, verdict.slot
            headers = answers.limit_headers(verdict)
        # Each earlier attempt used up one replica.
        most_endpoints = max(1, config.max_attempts - ask.attempt + 1)
        return Go(ask.id, ask.attempt, tuple(addresses[:most_endpoints]), headers=headers)

    def ended(self, report: Finished, now: float) -> None:
        """Corrects the charge of a request that has ended; one that was not charged here is ignored."""
        charge = self._charged.pop(report.request_id, None)
        if charge is not None:
            key, tokens, slot = charge
            account = self._accounts[key]
            account.settle(tokens, report.prompt_tokens + report.completion_tokens, slot, now)
            account.in_flight -= 1


_UNLIMITED = RateLimits()


def none_ready(service: ServiceKey) -> Refusal:
    """Returns the refusal of a request that no engine is ready for: nothing is held without a picker."""
    return no_replica(f"no replica of {service} is ready; try again")

"""Ledger of the requests sent to each engine: exact in-flight counts, and the prompt tokens that the engine's last
sample cannot include."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from heapq import nsmallest
from typing import Literal, NamedTuple

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.engines.account import Account, Flow, Sent
from inflight_gateway.engines.fleet import MOST_BY_PREFIX, MOST_RANKED, Fleet
from inflight_gateway.pick.blocks import ReplicaBlocks
from inflight_gateway.pick.load import EndpointLoad
from inflight_gateway.pick.prefix_index import DEFAULT_BLOCKS, IndexMemory, PrefixIndex
from inflight_gateway.pick.ranking import Ranking
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.timers import Timers
from inflight_gateway.types import (
    NAME_BYTES,
    Endpoint,
    EngineSample,
    Pick,
    PromptBlocks,
    RequestView,
    ServiceConfig,
)

REFUSAL_S = 1.0
"""Seconds for which other endpoints are preferred to one that refused a request: by then the next scrape says whether
its engine is gone or full."""


class Candidates(NamedTuple):
    """Replicas to rank for a request. Attributes: replicas: number of those that they are chosen from."""

    loads: list[EndpointLoad]
    replicas: int


Part = Literal["every", "answering", "prefill"]
PARTS: tuple[Part, ...] = ("every", "answering", "prefill")
"""Parts of a service's endpoints, see `Sets`."""


class Sets(NamedTuple):
    """The endpoints of a service: those that answer requests, and those that compute prompts for them."""

    every: Sequence[Endpoint]
    answering: Sequence[Endpoint]
    prefill: Sequence[Endpoint]


class Ledger:
    """Accounts of all engines, and the service that each request in flight belongs to.

    Args:
        endpoints: returns the endpoints that a service has now: the same object until they change.
        sample: returns the latest sample of an address; None: never scraped.
        estimates: estimates of the lengths of answers.

    Attributes:
        ranking: for the picker too.
        changed_services: changed since the reader emptied it (`state.load.GatewayLoads`).
    """

    def __init__(
        self,
        endpoints: Callable[[ServiceKey], Sequence[Endpoint]],
        sample: Callable[[str], EngineSample | None],
        estimates: Estimates,
    ) -> None:
        self._endpoints = endpoints
        self._sample = sample
        self._estimates = estimates
        self._accounts: dict[str, Account] = {}
        self._sent: dict[str, Sent] = {}
        """Requests in flight, by request id."""
        self._prefixes: dict[ServiceKey, PrefixIndex] = {}
        self._index_memory = IndexMemory()
        self.ranking = Ranking()
        self._sets: dict[ServiceKey, Sets] = {}
        self._fleets: dict[tuple[ServiceKey, Part], Fleet] = {}
        """Orders of the replicas of services, or parts of them, with more than `MOST_RANKED`."""
        self._refusals: Timers[str] = Timers(REFUSAL_S)
        """Addresses of endpoints that refused a request within `REFUSAL_S`."""
        self.changed_services: set[ServiceKey] = set()
        self._in_flight: dict[ServiceKey, int] = {}
        self._last: dict[ServiceKey, float] = {}
        self._flows: dict[ServiceKey, Flow] = {}

    def candidates(
        self,
        config: ServiceConfig,
        request: RequestView,
        now: float,
        *,
        above: bool = False,
        claimed: int = 0,
        allowed: Collection[str] = (),
        part: Part = "answering",
    ) -> Candidates:
        """Returns the replicas to rank for a request: all of a service with up to `MOST_RANKED`; of a larger one, those
        with the longest prefix of the prompt and those with the least load, in O(log n).

        Args:
            part: which replicas to choose from.
            above: the request's tenant is above its share. Fills in `EndpointLoad.growth`, which takes O(requests in
                flight) after each sample.
            claimed: slots that such a tenant leaves free, over all replicas.
            allowed: addresses that another gateway allows; empty: all.
        """
        endpoints: Sequence[Endpoint] = getattr(self.sets(config.key), part)
        index = self._prefixes.get(config.key) if request.prefix else None
        refused = self._refused_at(now)
        chosen: Sequence[Endpoint] = endpoints
        replicas = len(endpoints)
        if replicas > MOST_RANKED and not allowed:
            fleet = self._fleet(config, endpoints, now, part)
            by_prefix = index.longest(request.prefix, MOST_BY_PREFIX) if index is not None else ()
            leaves = -(-claimed // replicas) if above else None
            skip = request.avoid | refused
            chosen = fleet.candidates(request, now, by_prefix, skip, leaves) or endpoints[:MOST_RANKED]
        else:
            if allowed:
                chosen = [one for one in endpoints if one.address in allowed]
            if refused:
                chosen = [one for one in chosen if one.address not in refused] or chosen
            replicas = len(chosen)
            if replicas > MOST_RANKED:
                chosen = nsmallest(MOST_RANKED, chosen, lambda one: self.in_flight(one.address))
        answer_tokens = self._estimates.answer_tokens(request)
        accounts = [self._account(one.address, now) for one in chosen]
        if index is None:
            loads = [
                account.load(one, now, 0, answer_tokens, growing=above)
                for one, account in zip(chosen, accounts, strict=True)
            ]
        else:
            matched = index.matched([one.address for one in chosen], request.prefix)
            loads = [
                account.load(one, now, _cached(blocks, request), answer_tokens, loaded, on_disk, growing=above)
                for one, account, blocks, loaded, on_disk in zip(chosen, accounts, *matched, strict=True)
            ]
        return Candidates([_with_peer(load, request) for load in loads] if request.handed_over else loads, replicas)

    def prefill_share(self, address: str, now: float) -> float:
        """Returns the share of its recent time that an engine needed for prompts that were sent there, at most 1."""
        account = self._accounts.get(address)
        return 0.0 if account is None else account.prefill_share(now)

    def flow(self, service: ServiceKey, now: float) -> tuple[float, float]:
        """Returns the requests a second that a service was sent recently, and the prompt tokens of them to compute."""
        flow = self._flows.get(service)
        return (0.0, 0.0) if flow is None else flow.at(now)

    def reconfigured(self, service: ServiceKey) -> None:
        """Drops what is made of a service's configuration, which has changed."""
        self._sets.pop(service, None)
        for part in PARTS:
            fleet = self._fleets.pop((service, part), None)
            if fleet is not None:
                fleet.drop()

    def sets(self, service: ServiceKey) -> Sets:
        """Returns the endpoints that a service has now, by what they do."""
        endpoints, known = self._endpoints(service), self._sets.get(service)
        if known is None or known.every is not endpoints:
            prefill = [one for one in endpoints if one.prefill]
            answering = [one for one in endpoints if not one.prefill] if prefill else endpoints
            known = self._sets[service] = Sets(endpoints, answering, prefill)
        return known

    def _fleet(self, config: ServiceConfig, endpoints: Sequence[Endpoint], now: float, part: Part) -> Fleet:
        """Returns the order of a service's replicas, made again when its endpoints or its configuration changed."""
        fleet = self._fleets.get((config.key, part))
        if fleet is None or fleet.endpoints is not endpoints or fleet.config is not config:
            if fleet is not None:
                fleet.drop()
            accounts = [self._account(one.address, now) for one in endpoints]
            for account in accounts:
                account.gone = False
            fleet = self._fleets[config.key, part] = Fleet(config, endpoints, accounts, self.ranking, now)
        return fleet

    def refused(self, address: str, now: float) -> None:
        """Notes that an endpoint refused a request: others are preferred to it for `REFUSAL_S`."""
        self._refusals.begin(address, now)

    def _refused_at(self, now: float) -> frozenset[str]:
        if self._refusals:
            self._refusals.expire(now)
        return frozenset(self._refusals) if self._refusals else frozenset()

    def sampled(self, address: str, now: float) -> None:
        """Applies the new sample of an endpoint."""
        if address in self._accounts:
            self._account(address, now)

    def begin(self, request: RequestView, pick: Pick, now: float) -> None:
        """Adds a request that is sent to the first picked endpoint."""
        address = pick.endpoints[0].address
        tokens = max(0, request.prompt_tokens - pick.cached_tokens)
        entry = self._sent[request.request_id] = Sent(
            *(request.service, address, now, tokens),
            *(request.prompt_tokens, request.prefix, request.block_tokens),
            self._estimates.begin(request),
            request.choices,
        )
        self._in_flight[request.service] = self._in_flight.get(request.service, 0) + 1
        if not request.handed_over:
            self._flows.setdefault(request.service, Flow()).add(tokens, now)
        self.touch(request.service, now)
        self._arrive(request.request_id, entry)

    def end(self, request_id: str, now: float) -> None:
        """Removes a request whose stream has ended, for any reason; unknown requests are ignored."""
        entry = self._sent.pop(request_id, None)
        if entry is None:
            return
        self._leave(request_id, entry.address, now)
        self._settle(entry)
        entry.answer.lengths.leave(entry.answer)
        self._in_flight[entry.service] -= 1
        self.touch(entry.service, now)

    def move(self, request_id: str, address: str, now: float) -> bool:
        """Moves a request to another endpoint, because endpoints before it in the pick refused it. Returns False for an
        unknown request or endpoint, and if it is there already."""
        entry = self._sent.get(request_id)
        if entry is None or entry.address == address:
            return False
        if address not in self._accounts and all(one.address != address for one in self._endpoints(entry.service)):
            return False
        self._account(entry.address, now).take_back(entry.at, entry.tokens, now)
        self._leave(request_id, entry.address, now)
        self._settle(entry)
        index = self._prefixes.get(entry.service)
        blocks = index.matched([address], entry.prefix).blocks[0] if index and entry.prefix else 0
        entry.address, entry.at, entry.answer.generated = address, now, 0.0
        entry.tokens = max(0, entry.prompt_tokens - _cached(blocks, entry))
        self._arrive(request_id, entry)
        return True

    def _arrive(self, request_id: str, entry: Sent) -> None:
        """Adds a request to the account and the prefix index of its endpoint."""
        account = self._account(entry.address, entry.at)
        account.arrive(request_id, entry)
        account.place(entry.address, entry.at)
        if entry.prefix:
            index = self._index(entry.service)
            kv_tokens = account.sample.kv_cache_tokens if account.sample else 0
            blocks = max(1, kv_tokens // max(1, entry.block_tokens)) if kv_tokens else DEFAULT_BLOCKS
            index.add(entry.address, entry.prefix, blocks)
            account.indexed = entry.service
            entry.awaited = True

    def told(self, request_id: str, blocks: PromptBlocks, now: float) -> None:
        """Notes the blocks of a prompt that its engine has computed; unknown requests are ignored."""
        entry = self._sent.get(request_id)
        if entry is None or not entry.prefix:
            return
        names = struct.unpack(f"<{len(blocks.names) // NAME_BYTES}Q", blocks.names)
        per_key = blocks.tokens / blocks.size * entry.block_tokens / max(1, entry.prompt_tokens)
        self._index(entry.service).told(entry.address, entry.prefix, names, per_key, entry.at, now)
        self._settle(entry)

    def publishes(self, service: ServiceKey, address: str, blocks: ReplicaBlocks | None) -> None:
        """Sets the blocks that the events of an engine tell; None: there are no events any more."""
        if blocks is not None:
            self._index(service).publishes(address, blocks)
        elif service in self._prefixes:
            self._prefixes[service].publishes(address, None)

    def exact(self, service: ServiceKey, address: str) -> bool:
        """Returns whether it is known what the prefix cache of an engine holds."""
        index = self._prefixes.get(service)
        return index is not None and index.exact(address)

    def block_size(self, service: ServiceKey, address: str) -> int:
        """Returns the tokens of a block of an engine, by its events; 0: they do not say."""
        index = self._prefixes.get(service)
        return 0 if index is None else index.block_size(address)

    def _index(self, service: ServiceKey) -> PrefixIndex:
        index = self._prefixes.get(service)
        if index is None:
            index = self._prefixes[service] = PrefixIndex(self._index_memory)
        return index

    def _settle(self, entry: Sent) -> None:
        """Notes that a prompt is not on its way any more."""
        index = self._prefixes.get(entry.service)
        if index is not None and entry.awaited:
            index.settled(entry.address, entry.prefix)
        entry.awaited = False

    def touch(self, service: ServiceKey, now: float) -> None:
        """Notes that a request for the service arrived or ended."""
        self._last[service] = now
        self.changed_services.add(service)

    def service(self, service: ServiceKey, now: float) -> tuple[int, float | None]:
        """Returns the requests in flight, and seconds since the last arrival or end; None: none since the start."""
        last = self._last.get(service)
        return self._in_flight.get(service, 0), None if last is None else now - last

    def in_flight(self, address: str) -> int:
        """Returns the unfinished choices of requests that this gateway sent to an endpoint."""
        account = self._accounts.get(address)
        return 0 if account is None else account.in_flight

    def forget(self, service: ServiceKey, address: str) -> None:
        """Removes an endpoint: its requests in flight are still counted, its cache is dropped."""
        index = self._prefixes.get(service)
        if index is not None:
            index.forget(address)
            index.publishes(address, None)
            if not index:
                index.drop()
                del self._prefixes[service]
        self.reconfigured(service)
        account = self._accounts.get(address)
        if account is not None:
            account.gone = True
            self._drop_if_done(address, account)

    def _leave(self, request_id: str, address: str, now: float) -> None:
        account = self._account(address, now)
        account.leave(request_id)
        account.place(address, now)
        self._drop_if_done(address, account)

    def _drop_if_done(self, address: str, account: Account) -> None:
        if account.gone and not account.in_flight:
            del self._accounts[address]

    def _account(self, address: str, now: float) -> Account:
        account = self._accounts.get(address)
        if account is None:
            account = self._accounts[address] = Account(pending_at=now)
        sample = self._sample(address)
        if sample is not None and sample is not account.sample:
            account.take(sample)
            if sample.asleep:
                self._fell_asleep(address, account)
            account.place(address, now)
        return account

    def _fell_asleep(self, address: str, account: Account) -> None:
        """Drops what the index has of an engine without a KV cache, unless a request was sent there since."""
        if account.indexed is None or account.sent or account.since:
            return
        index = self._prefixes.get(account.indexed)
        if index is not None:
            index.forget(address)
        account.indexed = None


def _with_peer(load: EndpointLoad, request: RequestView) -> EndpointLoad:
    """Returns the load for a request whose last engine gives away its keys and values: what is not cached is read."""
    most = max(0, request.prompt_tokens - 1)
    read = most - load.cached_tokens
    return load._replace(cached_tokens=most, loaded_tokens=load.loaded_tokens + read, peer_tokens=read)


def _cached(blocks: int, request: RequestView | Sent) -> int:
    """Returns the cached tokens of a prompt: all but its last one at most, which engines always compute."""
    return min(blocks * request.block_tokens, max(0, request.prompt_tokens - 1))

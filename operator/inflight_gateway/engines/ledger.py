"""Ledger of the requests sent to each engine: exact in-flight counts, and the prompt tokens that the engine's last
sample cannot include."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.engines.account import Account, Peer, Sent
from inflight_gateway.pick.load import STALE_S, EndpointLoad
from inflight_gateway.pick.prefix_index import DEFAULT_BLOCKS, PrefixIndex
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.types import Endpoint, EngineSample, Pick, RequestView

PEER_S = 7.0
"""Seconds after which a peer's requests in flight no longer count: more than the 5 s between two full lines of its
state stream (`state/stream.py`), and as long as limits count it as live (`state/peers.py`)."""

FORGET_PEER_S = 60.0
"""Seconds after which a returning peer counts as a new one."""


class Ledger:
    """Accounts of all engines, and the service that each request in flight belongs to.

    Args:
        endpoints: returns the endpoints that a service has now.
        sample: returns the latest sample of an address; None: never scraped.
        estimates: estimates of the lengths of answers.
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
        self._in_flight: dict[ServiceKey, int] = {}
        self._last: dict[ServiceKey, float] = {}

    def loads(
        self, service: ServiceKey, request: RequestView, now: float, *, growing: bool = False
    ) -> list[EndpointLoad]:
        """Returns the load of all endpoints of the service for this request: O(endpoints x log(blocks of the prompt)).

        Args:
            growing: fill in `EndpointLoad.growth`, which takes O(requests in flight) after each sample.
        """
        endpoints = self._endpoints(service)
        index = self._prefixes.get(service)
        addresses = [each.address for each in endpoints]
        matched = index.matched(addresses, request.prefix) if index and request.prefix else [0] * len(addresses)
        answer_tokens = self._estimates.answer_tokens(request)
        loads = []
        for endpoint, blocks in zip(endpoints, matched, strict=True):
            account = self._account(endpoint.address, now)
            sample = account.sample
            others = max(account.others, _of_peers(account, now)) if account.peers else account.others
            loads.append(
                EndpointLoad(
                    endpoint=endpoint,
                    sample=sample,
                    in_flight=account.in_flight,
                    sent_tokens=account.since_tokens,
                    cached_tokens=_cached(blocks, request.block_tokens, request.prompt_tokens),
                    computed_tokens=max(0, account.known - round(account.pending)),
                    others=others,
                    growth=account.growth_of(others) if growing else None,
                    answer_tokens=answer_tokens,
                )
            )
        return loads

    def begin(self, request: RequestView, pick: Pick, now: float) -> None:
        """Adds a request that is sent to the first picked endpoint."""
        address = pick.endpoints[0].address
        tokens = max(0, request.prompt_tokens - pick.cached_tokens)
        entry = self._sent[request.request_id] = Sent(
            *(request.service, address, now, tokens),
            *(request.prompt_tokens, request.prefix, request.block_tokens),
            self._estimates.begin(request),
        )
        self._in_flight[request.service] = self._in_flight.get(request.service, 0) + 1
        self._last[request.service] = now
        self._arrive(request.request_id, entry)

    def end(self, request_id: str, now: float) -> None:
        """Removes a request whose stream has ended, for any reason; unknown requests are ignored."""
        entry = self._sent.pop(request_id, None)
        if entry is None:
            return
        self._leave(request_id, entry.address, now)
        entry.answer.lengths.leave(entry.answer)
        self._in_flight[entry.service] -= 1
        self._last[entry.service] = now

    def move(self, request_id: str, address: str, now: float) -> None:
        """Moves a request that Envoy sent to another endpoint, because endpoints before it in the pick refused it."""
        entry = self._sent.get(request_id)
        if entry is None or entry.address == address or address not in self._accounts:
            return
        self._account(entry.address, now).take_back(entry.at, entry.tokens, now)
        self._leave(request_id, entry.address, now)
        index = self._prefixes.get(entry.service)
        blocks = index.matched([address], entry.prefix)[0] if index and entry.prefix else 0
        entry.address, entry.at, entry.answer.generated = address, now, 0.0
        entry.tokens = max(0, entry.prompt_tokens - _cached(blocks, entry.block_tokens, entry.prompt_tokens))
        self._arrive(request_id, entry)

    def _arrive(self, request_id: str, entry: Sent) -> None:
        """Adds a request to the account and the prefix index of its endpoint."""
        account = self._account(entry.address, entry.at)
        account.arrive(request_id, entry)
        if entry.prefix:
            index = self._prefixes.setdefault(entry.service, PrefixIndex())
            kv_tokens = account.sample.kv_cache_tokens if account.sample else 0
            blocks = max(1, kv_tokens // max(1, entry.block_tokens)) if kv_tokens else DEFAULT_BLOCKS
            index.add(entry.address, entry.prefix, blocks)

    def touch(self, service: ServiceKey, now: float) -> None:
        """Notes that a request for the service arrived, whatever its outcome."""
        self._last[service] = now

    def service(self, service: ServiceKey, now: float) -> tuple[int, float | None]:
        """Returns the requests in flight, and seconds since the last arrival or end; None: none since the start."""
        last = self._last.get(service)
        return self._in_flight.get(service, 0), None if last is None else now - last

    def sent(self) -> dict[str, tuple[int, int]]:
        """Returns, by address, the requests in flight and the prompt tokens sent since this gateway started. Peers get
        these totals and compute differences."""
        return {address: (each.in_flight, each.total_tokens) for address, each in self._accounts.items()}

    def peer(self, gateway: str, sent: Mapping[str, tuple[int, int]], now: float) -> None:
        """Applies what another gateway reports in its `sent`; its first report only sets the baseline. Addresses that
        this gateway never picked are ignored: a peer may still report removed endpoints."""
        for address, (in_flight, total) in sent.items():
            if address not in self._accounts:
                continue
            account = self._account(address, now)
            account.peers = {name: peer for name, peer in account.peers.items() if now - peer.at <= FORGET_PEER_S}
            known = account.peers.get(gateway)
            if known is not None and total > known.sent_tokens:
                account.send(now, total - known.sent_tokens)
            account.peers[gateway] = Peer(now, in_flight, total)

    def forget(self, service: ServiceKey, address: str) -> None:
        """Removes an endpoint: its requests in flight are still counted, its cache is dropped."""
        index = self._prefixes.get(service)
        if index is not None:
            index.forget(address)
        account = self._accounts.get(address)
        if account is not None:
            account.gone = True
            self._drop_if_done(address, account)

    def _leave(self, request_id: str, address: str, now: float) -> None:
        account = self._account(address, now)
        account.leave(request_id)
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
        if account.since:
            account.drop_before(now - STALE_S)
        if account.pending:
            account.advance(now)
        return account


def _cached(blocks: int, block_tokens: int, prompt_tokens: int) -> int:
    """Returns the cached tokens of a prompt: all but its last one at most, which engines always compute."""
    return min(blocks * block_tokens, max(0, prompt_tokens - 1))


def _of_peers(account: Account, now: float) -> int:
    return sum(peer.in_flight for peer in account.peers.values() if now - peer.at <= PEER_S)

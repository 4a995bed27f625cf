"""Ledger of the requests sent to each engine: exact in-flight counts, and the prompt tokens that the engine's last
sample cannot include."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from inflight_gateway.pick.prefix_index import DEFAULT_BLOCKS, PrefixIndex
from inflight_gateway.pick.progress import prefill_tokens_per_second
from inflight_gateway.pick.replica_state import STALE_S
from inflight_gateway.types import Endpoint, EndpointLoad, EngineSample, Pick, RequestView, ServiceKey

PEER_S = 7.0
"""Seconds after which a peer's requests in flight no longer count: more than the 5 s between two full lines of its
state stream (`state/stream.py`), and as long as limits count it as live (`state/peers.py`)."""

FORGET_PEER_S = 60.0
"""Seconds after which a returning peer counts as a new one."""


@dataclass(slots=True, eq=False)
class _Sent:
    """A request in flight.

    Attributes:
        at: when it was sent to `address`.
        tokens: of its prompt that the engine has to compute.
        prompt_tokens, prefix, block_tokens: of the request.
    """

    service: ServiceKey
    address: str
    at: float
    tokens: int
    prompt_tokens: int
    prefix: tuple[int, ...]
    block_tokens: int


@dataclass(slots=True)
class _Peer:
    at: float
    in_flight: int
    sent_tokens: int


@dataclass(slots=True)
class _Account:
    """One engine.

    Attributes:
        total_tokens: sent since the start.
        sample: base of the next five attributes.
        since: time and tokens of the requests sent since its scrape began, at most `STALE_S` ago.
        since_tokens: their sum.
        pending: prompt tokens that the engine still has to compute at `pending_at`, at `rate` a second.
        others: requests in the sample that this gateway did not send.
        gone: no longer an endpoint.
    """

    in_flight: int = 0
    total_tokens: int = 0
    sample: EngineSample | None = None
    since: deque[tuple[float, int]] = field(default_factory=deque)
    since_tokens: int = 0
    pending: float = 0.0
    pending_at: float = 0.0
    rate: float = 0.0
    others: int = 0
    peers: dict[str, _Peer] = field(default_factory=dict)
    gone: bool = False

    def take(self, sample: EngineSample) -> None:
        """A new sample: requests sent before its scrape began are in it, or were computed."""
        self.sample = sample
        self.drop_before(sample.at)
        self.rate = prefill_tokens_per_second(sample)
        self.pending, self.pending_at = float(sample.waiting_prompt_tokens), sample.at
        for at, tokens in self.since:
            self.advance(at)
            self.pending += tokens
        self.others = max(0, sample.running + sample.waiting - self.in_flight)

    def advance(self, now: float) -> None:
        self.pending = max(0.0, self.pending - self.rate * max(0.0, now - self.pending_at))
        self.pending_at = max(now, self.pending_at)

    def send(self, at: float, tokens: int) -> None:
        self.advance(at)
        self.pending += tokens
        self.since.append((at, tokens))
        self.since_tokens += tokens

    def take_back(self, at: float, tokens: int, now: float) -> None:
        """A request sent `at` this time was refused. Sent before the scrape of the last sample, it is in no figure."""
        if (at, tokens) in self.since:
            self.since.remove((at, tokens))
            self.since_tokens -= tokens
            self.advance(now)
            self.pending = min(max(0.0, self.pending - tokens), float(self.known))

    @property
    def known(self) -> int:
        """Prompt tokens of the sample's waiting requests and of those sent since."""
        return self.since_tokens + (self.sample.waiting_prompt_tokens if self.sample else 0)

    def drop_before(self, time: float) -> None:
        while self.since and self.since[0][0] < time:
            self.since_tokens -= self.since.popleft()[1]


class Ledger:
    """
    Args:
        endpoints: of a service, now.
        sample: of an address, the latest; None: never scraped.
    """

    def __init__(
        self,
        endpoints: Callable[[ServiceKey], Sequence[Endpoint]],
        sample: Callable[[str], EngineSample | None],
    ) -> None:
        self._endpoints = endpoints
        self._sample = sample
        self._accounts: dict[str, _Account] = {}
        self._sent: dict[str, _Sent] = {}
        """By request id."""
        self._prefixes: dict[ServiceKey, PrefixIndex] = {}
        self._in_flight: dict[ServiceKey, int] = {}
        self._last: dict[ServiceKey, float] = {}

    def loads(self, service: ServiceKey, request: RequestView, now: float) -> list[EndpointLoad]:
        """The state of all endpoints of the service for this request: O(endpoints x log(blocks of the prompt))."""
        endpoints = self._endpoints(service)
        index = self._prefixes.get(service)
        addresses = [each.address for each in endpoints]
        matched = index.matched(addresses, request.prefix) if index and request.prefix else [0] * len(addresses)
        loads = []
        for endpoint, blocks in zip(endpoints, matched, strict=True):
            account = self._account(endpoint.address, now)
            sample = account.sample
            loads.append(
                EndpointLoad(
                    endpoint=endpoint,
                    sample=sample,
                    in_flight=account.in_flight,
                    sent_tokens=account.since_tokens,
                    cached_tokens=_cached(blocks, request.block_tokens, request.prompt_tokens),
                    computed_tokens=max(0, account.known - round(account.pending)),
                    others=max(account.others, _of_peers(account, now)) if account.peers else account.others,
                )
            )
        return loads

    def begin(self, request: RequestView, pick: Pick, now: float) -> None:
        """The request is sent to the first picked endpoint."""
        address = pick.endpoints[0].address
        tokens = max(0, request.prompt_tokens - pick.cached_tokens)
        entry = self._sent[request.request_id] = _Sent(
            *(request.service, address, now, tokens),
            *(request.prompt_tokens, request.prefix, request.block_tokens),
        )
        self._in_flight[request.service] = self._in_flight.get(request.service, 0) + 1
        self._last[request.service] = now
        self._arrive(entry)

    def end(self, request_id: str, now: float) -> None:
        """The request's stream has ended, for any reason; unknown requests are ignored."""
        entry = self._sent.pop(request_id, None)
        if entry is None:
            return
        self._leave(entry.address, now)
        self._in_flight[entry.service] -= 1
        self._last[entry.service] = now

    def move(self, request_id: str, address: str, now: float) -> None:
        """Envoy sent the request to another endpoint, because those before it in the pick refused it."""
        entry = self._sent.get(request_id)
        if entry is None or entry.address == address or address not in self._accounts:
            return
        self._account(entry.address, now).take_back(entry.at, entry.tokens, now)
        self._leave(entry.address, now)
        index = self._prefixes.get(entry.service)
        blocks = index.matched([address], entry.prefix)[0] if index and entry.prefix else 0
        entry.address, entry.at = address, now
        entry.tokens = max(0, entry.prompt_tokens - _cached(blocks, entry.block_tokens, entry.prompt_tokens))
        self._arrive(entry)

    def _arrive(self, entry: _Sent) -> None:
        """At its address."""
        account = self._account(entry.address, entry.at)
        account.in_flight += 1
        account.total_tokens += entry.tokens
        account.send(entry.at, entry.tokens)
        if entry.prefix:
            index = self._prefixes.setdefault(entry.service, PrefixIndex())
            kv_tokens = account.sample.kv_cache_tokens if account.sample else 0
            blocks = max(1, kv_tokens // max(1, entry.block_tokens)) if kv_tokens else DEFAULT_BLOCKS
            index.add(entry.address, entry.prefix, blocks)

    def touch(self, service: ServiceKey, now: float) -> None:
        """A request for the service arrived, whatever its outcome."""
        self._last[service] = now

    def service(self, service: ServiceKey, now: float) -> tuple[int, float | None]:
        """Requests in flight, and seconds since the last one came or ended; None: no request since this gateway
        started."""
        last = self._last.get(service)
        return self._in_flight.get(service, 0), None if last is None else now - last

    def sent(self) -> dict[str, tuple[int, int]]:
        """By address: requests in flight, and prompt tokens sent there since this gateway started; sent to peers, which
        compute differences."""
        return {address: (each.in_flight, each.total_tokens) for address, each in self._accounts.items()}

    def peer(self, gateway: str, sent: Mapping[str, tuple[int, int]], now: float) -> None:
        """Requests sent by another gateway, from its `sent`; its first report only sets the baseline. Addresses without
        a pick here are ignored: a peer may still report removed endpoints."""
        for address, (in_flight, total) in sent.items():
            if address not in self._accounts:
                continue
            account = self._account(address, now)
            account.peers = {name: peer for name, peer in account.peers.items() if now - peer.at <= FORGET_PEER_S}
            known = account.peers.get(gateway)
            if known is not None and total > known.sent_tokens:
                account.send(now, total - known.sent_tokens)
            account.peers[gateway] = _Peer(now, in_flight, total)

    def forget(self, service: ServiceKey, address: str) -> None:
        """Removes an endpoint: its requests in flight are still counted, its cache is dropped."""
        index = self._prefixes.get(service)
        if index is not None:
            index.forget(address)
        account = self._accounts.get(address)
        if account is not None:
            account.gone = True
            self._drop_if_done(address, account)

    def _leave(self, address: str, now: float) -> None:
        account = self._account(address, now)
        account.in_flight -= 1
        self._drop_if_done(address, account)

    def _drop_if_done(self, address: str, account: _Account) -> None:
        if account.gone and not account.in_flight:
            del self._accounts[address]

    def _account(self, address: str, now: float) -> _Account:
        account = self._accounts.get(address)
        if account is None:
            account = self._accounts[address] = _Account(pending_at=now)
        sample = self._sample(address)
        if sample is not None and sample is not account.sample:
            account.take(sample)
        if account.since:
            account.drop_before(now - STALE_S)
        if account.pending:
            account.advance(now)
        return account


def _cached(blocks: int, block_tokens: int, prompt_tokens: int) -> int:
    """Engines compute at least the last token of a prompt."""
    return min(blocks * block_tokens, max(0, prompt_tokens - 1))


def _of_peers(account: _Account, now: float) -> int:
    return sum(peer.in_flight for peer in account.peers.values() if now - peer.at <= PEER_S)

"""The replicas of a large service in the order of their load, so that a pick looks at a few of them only."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush, merge
from itertools import chain, islice
from typing import TypeAlias

from inflight_cost.model import CostModel
from inflight_gateway.engines.account import Account
from inflight_gateway.pick.late_binding import has_slot
from inflight_gateway.pick.ranking import Ranking
from inflight_gateway.types import Endpoint, RequestView, ServiceConfig

MOST_RANKED = 16
"""Replicas that a pick ranks at most: half of them hold the most of the prompt, half have the least load. Services with
no more replicas have all of them ranked."""

MOST_BY_PREFIX = MOST_BY_LOAD = MOST_RANKED // 2

MOST_PASSED = 8 * MOST_BY_LOAD
"""Replicas that a pick passes at most in the order of their load because they have too few slots left for a tenant
above its share. Those with slots left are near the front, as requests are most of the load."""

LEAST_WAIT_S = 1e-3
"""Seconds at least until a replica's place is computed again because its backlog is shorter."""

Entry: TypeAlias = "tuple[float, int, Member]"


@dataclass(slots=True, eq=False)
class Member:
    """A replica of the service.

    Attributes:
        order: the order that it is in, `entry` is its place there.
        idle_key: its place among those without a backlog, once it has none; None: to be computed then.
    """

    endpoint: Endpoint
    account: Account
    order: list[Entry]
    entry: Entry | None = None
    idle_key: float | None = None


class Fleet:
    """The replicas of one service. They are ordered by what they add to the rank of a request without a cached prefix
    (`Ranking`), as of the last change of their accounts.

    A backlog falls by a second each second, so the order of replicas with a backlog does not change with the time
    until one has none: such moments are events. Replicas that could not start a request are in an order of their own.

    Args:
        accounts: of the endpoints, in their order.
        ranking: that of picks too, so that constants of a sample are computed once.
    """

    def __init__(
        self,
        config: ServiceConfig,
        endpoints: Sequence[Endpoint],
        accounts: Sequence[Account],
        ranking: Ranking,
        now: float,
    ) -> None:
        self.config = config
        self.endpoints = endpoints
        self._ranking = ranking
        self._per_s = config.weights.pending_tokens + config.weights.predicted_ttft
        self._per_own_s = config.weights.predicted_ttft + config.weights.prefix
        self._typical = RequestView("", config.key, 0.0)
        self._prompt_tokens = 0.0
        self._cost: CostModel | None = None
        self._idle: list[Entry] = []
        """Replicas without a backlog, by their rank."""
        self._behind: list[Entry] = []
        """Replicas with a backlog, by their rank when `now` is 0: `_per_s` more than the rank for each second."""
        self._busy: list[Entry] = []
        """Replicas that could not start a request, by the end of their backlog."""
        self._events: list[Entry] = []
        """When to look at a replica again; those whose entry is not the same any more are out of date."""
        self._number = 0
        self.members: dict[str, Member] = {}
        for endpoint, account in zip(endpoints, accounts, strict=True):
            member = self.members[endpoint.address] = Member(endpoint, account, self._idle)
            account.fleets = (*account.fleets, self)
            self._place(member, now)

    def drop(self) -> None:
        """Removes the fleet from the accounts of its replicas."""
        for member in self.members.values():
            member.account.fleets = tuple(one for one in member.account.fleets if one is not self)

    def changed(self, address: str, now: float) -> None:
        """Notes that the account of an endpoint has changed."""
        member = self.members.get(address)
        if member is not None:
            self._place(member, now)

    def candidates(
        self, request: RequestView, now: float, by_prefix: Sequence[str], avoid: Collection[str], claimed: int | None
    ) -> list[Endpoint]:
        """Returns the endpoints that are worth to be ranked for a request: O(log n) amortized.

        Args:
            by_prefix: addresses that hold the most of its prompt.
            avoid: addresses that are left out.
            claimed: slots that its tenant, which is above its share, leaves free at each replica; None: it is not.
        """
        self._learn(request.prompt_tokens)
        while self._events and self._events[0][0] <= now:
            _, number, member = heappop(self._events)
            if member.entry is None or member.entry[1] != number:
                continue
            if member.order is self._behind and member.idle_key is not None:
                self._put(member, self._idle, member.idle_key)
            else:
                self._place(member, now)
        members = self.members
        chosen = {
            address: members[address].endpoint for address in by_prefix if address in members and address not in avoid
        }
        least = islice(self._by_load(request, now, avoid, claimed), MOST_BY_LOAD)
        chosen.update((endpoint.address, endpoint) for endpoint in least)
        return list(chosen.values())

    def _by_load(
        self, request: RequestView, now: float, avoid: Collection[str], claimed: int | None
    ) -> Iterator[Endpoint]:
        passed = self._per_s * now
        ready = merge(self._idle, ((key - passed, number, member) for key, number, member in self._behind))
        too_full = 0
        for _, _, member in chain(ready, self._busy):
            if member.endpoint.address in avoid:
                continue
            if (
                claimed is not None
                and too_full < MOST_PASSED
                and not self._has_slot(member.account, request.choices, claimed)
            ):
                too_full += 1
                continue
            yield member.endpoint

    def _place(self, member: Member, now: float) -> None:
        account = member.account
        load = account.load(member.endpoint, now)
        sample = load.sample
        if sample is not None and sample.cost is not None:
            self._cost = sample.cost
        ready, busy = self._ranking.rank([load], self._typical, self.config, self._cost, now, above_share=False)
        rank = (*ready, *busy)[0]
        falls, until = rank.backlog_s > 0 and account.rate > 0, 0.0
        if not ready:
            self._put(member, self._busy, now + rank.backlog_s)
            until = rank.opens_s if falls else 0.0
        else:
            key = rank.total - self._per_own_s * rank.own_prefill_s
            if not falls:
                self._put(member, self._idle, key)
            else:
                until = account.pending / account.rate
                self._put(member, self._behind, key + self._per_s * now)
                # Its other scores change with the backlog if nothing runs, or tokens do not fit into the KV cache.
                used = 0.0 if sample is None else sample.kv_utilization * sample.kv_cache_tokens
                fits = sample and used + account.pending + self._typical.prompt_tokens <= sample.kv_cache_tokens
                same = sample is not None and sample.running > 0 and fits
                member.idle_key = key - self._per_s * rank.backlog_s if same else None
        if until > 0 and member.entry is not None:
            heappush(self._events, (now + max(LEAST_WAIT_S, until), member.entry[1], member))

    def _put(self, member: Member, order: list[Entry], key: float) -> None:
        if member.entry is not None:
            del member.order[bisect_left(member.order, member.entry)]
        self._number += 1
        member.order, member.entry = order, (key, self._number, member)
        insort(order, member.entry)

    def _learn(self, prompt_tokens: int) -> None:
        """Follows the mean prompt, whose room in the KV cache counts in the order."""
        self._prompt_tokens += (prompt_tokens - self._prompt_tokens) / 64
        known = self._typical.prompt_tokens
        if abs(self._prompt_tokens - known) > 1 + known / 10:
            self._typical = replace(self._typical, prompt_tokens=round(self._prompt_tokens))

    def _has_slot(self, account: Account, choices: int, claimed: int) -> bool:
        slots = account.sample.limits.max_num_seqs if account.sample else self.config.max_num_seqs
        outstanding = account.in_flight + account.others
        return has_slot(outstanding, slots, choices, above_share=True, claimed=claimed)

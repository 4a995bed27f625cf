"""The queue of held requests of one service, and their order: by the virtual token counters of clients, with weights;
by priority; by deadline with a learned lead time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, sqrt

from inflight_gateway.hold.bounds import Room
from inflight_gateway.types import Pick, RequestView, ServiceConfig
from inflight_policies.deadline import OVERDUE_WAIT_SHARE, DeadlineQueue, LateTurns
from inflight_policies.lazy_heap import LazyHeap
from inflight_policies.priority import aged
from inflight_policies.service_counter import MAX_DEBTORS, ServiceCounters, unit_of_weight

_UNIT = unit_of_weight(1.0)
_CHARGED = 1 << 62
"""Rank of charged clients: larger than the number of times that clients start to wait."""


class VirtualCounters:
    """Tokens served to each client, divided by its weight: the engine's `ServiceCounters`, but answers are charged when
    they are reported.

    Between clients with equal counters, those that were lifted and not charged come first, then the one with the
    longest wait.
    """

    def __init__(self) -> None:
        self._counters = ServiceCounters(most_kept=MAX_DEBTORS, charged_rank=_CHARGED)
        self._starts = 0

    def least(self) -> str | None:
        """Returns the waiting client with the least service."""
        return self._counters.least(0)

    def ahead(self, client: str) -> float:
        """Returns how far a waiting client's counter is ahead of the least one, in tokens by weight."""
        return (self._counters.service(client, 0) - self._counters.level(0)) / _UNIT

    def start_waiting(self, client: str, weight: float) -> None:
        """Adds a client that starts to wait."""
        self._starts += 1
        self._counters.start_waiting(client, self._starts, 0, unit_of_weight(weight))

    def stop_waiting(self, client: str) -> None:
        """Removes a client that has no waiting request any more."""
        self._counters.stop_waiting(client)

    def charge(self, client: str, tokens: int) -> None:
        """Charges computed tokens to a client, in units of `PROMPT_TOKEN`. A client without a counter was not ahead of
        the others and is not charged."""
        if tokens and client in self._counters:
            self._counters.charge(client, tokens, 0)


_SHARE = 0.1
"""Weight of the latest start in the moving averages of `LeadTime`."""

MARGIN_SHARE = 0.2
"""Margin of the lead time, as a share of the TTFT target. In an overload the oldest request in time is always about to
be late, so without a margin every other start comes too late after all."""


class LeadTime:
    """Time before its deadline at which a request has to start, learned from the predictions of a service's latest
    starts.

    Attributes:
        wait_s: seconds from the start to the begin of the request's own prefill.
        token_s: seconds that the prefill of one token takes, in a prompt of mean length.
    """

    def __init__(self) -> None:
        self.wait_s = 0.0
        self.token_s = 0.0
        self._tokens = 0.0
        """Mean length."""
        self._variance = self._covariance = 0.0
        """Variance of lengths, and covariance with seconds per token: tokens of long prompts attend to more. After
        Finch 2009, "Incremental calculation of weighted mean and variance"."""

    def started(self, request: RequestView, pick: Pick) -> None:
        # Later attempts have no first token to come, and some read their prompt instead of computing it.
        if pick.predicted_ttft_s is None or pick.prefill_s is None or request.attempt > 1:
            return
        self.wait_s += _SHARE * (pick.predicted_ttft_s - pick.prefill_s - self.wait_s)
        computed = request.prompt_tokens - pick.cached_tokens
        if computed > 0:
            longer, slower = computed - self._tokens, pick.prefill_s / computed - self.token_s
            share = _SHARE if self._tokens else 1.0
            self._tokens += share * longer
            self.token_s += share * slower
            self._variance = (1 - share) * (self._variance + share * longer**2)
            self._covariance = (1 - share) * (self._covariance + share * longer * slower)

    def latest_start(self, request: RequestView, ttft_s: float | None) -> float:
        """Returns the latest start of a request, in seconds, without `wait_s`, which changes.

        Args:
            ttft_s: target of its class, in seconds; None: it has none.
        """
        slope = max(0.0, self._covariance / self._variance) if self._variance else 0.0
        token_s = max(0.0, self.token_s + slope * (request.prompt_tokens - self._tokens))
        return request.deadline - token_s * request.prompt_tokens - MARGIN_SHARE * (ttft_s or 0.0)


_LOAD_S = 10.0
"""Time constant of the mean in `PrefillLoad`."""


class PrefillLoad:
    """Replicas that the prompts of requests with a TTFT target that start in time keep computing, on average of the
    last seconds."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._at = 0.0

    def add(self, prefill_s: float, now: float) -> None:
        self._seconds = _LOAD_S * self.replicas(now) + prefill_s
        self._at = now

    def replicas(self, now: float) -> float:
        return self._seconds / _LOAD_S * exp((self._at - now) / _LOAD_S)


MOST_AHEAD = 32_768.0
"""Tokens of service, relative to weight, by which a tenant (and its class) may be ahead of the next one and still
overtake its head: more than a tenant with a modest load is charged before the others catch up, and a bound for one
whose requests have far more tokens than those of others, which its share of slots alone would not be."""


@dataclass(frozen=True, slots=True, eq=False)
class QueuedRequest:
    """A request in the queue. Attributes: sequence: number of the offer. since: when it began to wait, in seconds."""

    request: RequestView
    sequence: int
    since: float


class _ClassQueue:
    """The waiting requests of one class, by tenant."""

    def __init__(self) -> None:
        self.counters = VirtualCounters()
        self.tenants: dict[str, DeadlineQueue[QueuedRequest]] = {}
        """Queues of the tenants that have waiting requests."""


class ServiceQueue:
    """The queue of one service. The waiting class with the fewest tokens served relative to its weight is next; within
    it the tenant by the same rule: the engine's order with classes and the `fair` policy.

    A tenant's requests of a class are ordered by priority and begin of their wait, as in the engine's `priority`
    policy. Of those with a TTFT target, the ones whose first token can still be in time come first, as in its
    `deadline` policy: late ones get one prompt token in twenty, and one pick in five while the first has waited for
    half of the longest wait; a step of priority counts as `priority_aging_s` of waiting here too. Without targets and
    priorities they are first come, first served.

    Attributes:
        room: size of the whole queue.
        lead_time: time before its deadline at which a request has to start.
        prefill_load: of the requests with a TTFT target that started in time.
        blocked: the head that could not start; None: not tried since a change. blocked_until: when it is tried again
            without one, in seconds.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self.blocked: QueuedRequest | None = None
        self.blocked_until = 0.0
        self.room = Room()
        self.lead_time = LeadTime()
        self.prefill_load = PrefillLoad()
        self._in_time: LazyHeap[QueuedRequest] = LazyHeap()
        """Requests of all tenants that are not late, by their latest start."""
        self._turns = LateTurns()
        """Turns of the late requests of all tenants."""
        self._by_tenant: dict[str, Room] = {}
        self._counters = VirtualCounters()
        self._classes: dict[str, _ClassQueue] = {}
        self._by_age: LazyHeap[QueuedRequest] = LazyHeap()
        self.config = config

    def __len__(self) -> int:
        return len(self._by_age)

    @property
    def oldest(self) -> QueuedRequest | None:
        """The request that has waited for longest."""
        first = self._by_age.first()
        return None if first is None else first[1]

    def tenant_room(self, tenant: str) -> Room:
        return self._by_tenant.get(tenant) or Room()

    def push(self, queued: QueuedRequest) -> None:
        request, config = queued.request, self.config
        chosen = config.service_class(request.service_class)
        queue = self._classes.get(request.service_class)
        if queue is None:
            queue = self._classes[request.service_class] = _ClassQueue()
        if not queue.tenants:
            self._counters.start_waiting(request.service_class, chosen.weight)
        tenant = queue.tenants.get(request.tenant)
        if tenant is None:
            tenant = queue.tenants[request.tenant] = DeadlineQueue(_work)
            queue.counters.start_waiting(request.tenant, config.tenant(request.tenant).weight)
        # Requests with the priority of their class stand where they began to wait.
        place = aged(queued.since, request.priority - chosen.priority, config.priority_aging_s)
        latest_start = self.lead_time.latest_start(request, config.ttft_of(chosen))
        tenant.push(queued, place, queued.sequence, latest_start)
        self._in_time.push(queued, (latest_start, queued.sequence))
        self._by_age.push(queued, (queued.since, queued.sequence))
        self.room.add(request)
        self._by_tenant.setdefault(request.tenant, Room()).add(request)

    def head(self, now: float) -> QueuedRequest | None:
        """Returns the request to start next, and leaves it in place."""
        service_class = self._counters.least() if len(self._by_age) else None
        if service_class is None:
            return None
        queue = self._classes[service_class]
        tenant = queue.counters.least()
        return None if tenant is None else self._head(queue.tenants[tenant], now)

    def overtaking(self, now: float, above: Callable[[RequestView, float], bool]) -> QueuedRequest | None:
        """Returns the request that may overtake the head if the head's tenant is above its share and leaves slots free
        to others, and leaves it in place: it is of the least served tenant not above its share, at most `MOST_AHEAD`
        ahead.

        The slots are free for such a request, so holding it would only keep them empty. It does not starve the head:
        once enough of the head's tenant's requests have ended, that tenant is no longer above its share.
        """
        best: tuple[float, float] | None = None
        found: QueuedRequest | None = None
        for service_class, queue in self._classes.items():
            if not queue.tenants or (class_ahead := self._counters.ahead(service_class)) > MOST_AHEAD:
                continue
            for name, tenant in queue.tenants.items():
                order = class_ahead, queue.counters.ahead(name)
                if order[1] > MOST_AHEAD or (best is not None and order >= best):
                    continue
                queued = self._head(tenant, now)
                if queued is not None and not above(queued.request, now):
                    best, found = order, queued
        return found

    def kept_free(self, queued: QueuedRequest, now: float) -> float:
        """Returns the number of replicas that the head leaves able to start a request at once, besides its own.

        A late request keeps as many as those in time need, by square-root staffing (Halfin and Whitt 1981): one that
        arrives while a late prompt of many tokens is computed would else be late, too. It keeps none while one in time
        waits, whose turn comes after its own, nor when the late requests' share of the starts has come: of all tenants
        and classes, since those of one may have no request in time that passes them over.
        """
        while (first := self._in_time.first()) is not None and first[0][0] < now + self.lead_time.wait_s:
            self._in_time.remove(first[1])
        if len(self._in_time) or self._turns.has_come(_work(queued), queued.since <= self._overdue(now)):
            return 0.0
        load = self.prefill_load.replicas(now)
        return load + 2 * sqrt(load)

    def start(self, queued: QueuedRequest, pick: Pick, tokens: int, now: float) -> None:
        """Remove the head, or a request that overtakes it, and charge its class and tenant.

        Args:
            tokens: charge, in units of `PROMPT_TOKEN`.
        """
        request, tenant = queued.request, self._tenant(queued)
        self.lead_time.started(request, pick)
        if tenant.is_late(queued):
            self._turns.take()
        else:
            if len(self._by_age) > len(self._in_time):
                self._turns.pass_over(_work(queued))
            if request.deadline < inf:
                self.prefill_load.add(pick.prefill_s or 0.0, now)
        tenant.pick(queued)
        self.charge(request.service_class, request.tenant, tokens)
        self._left(queued)

    def discard(self, queued: QueuedRequest) -> None:
        """Remove a request at any position."""
        self._tenant(queued).remove(queued)
        self._left(queued)

    def charge(self, service_class: str, tenant: str, tokens: int) -> None:
        self._counters.charge(service_class, tokens)
        queue = self._classes.get(service_class)
        if queue is not None:
            queue.counters.charge(tenant, tokens)

    def _tenant(self, queued: QueuedRequest) -> DeadlineQueue[QueuedRequest]:
        return self._classes[queued.request.service_class].tenants[queued.request.tenant]

    def _left(self, queued: QueuedRequest) -> None:
        request = queued.request
        self._by_age.remove(queued)
        if queued in self._in_time:
            self._in_time.remove(queued)
        self.room.add(request, -1)
        room = self._by_tenant[request.tenant]
        room.add(request, -1)
        if not room.requests:
            del self._by_tenant[request.tenant]
        queue = self._classes[request.service_class]
        if not len(queue.tenants[request.tenant]):
            del queue.tenants[request.tenant]
            queue.counters.stop_waiting(request.tenant)
        if not queue.tenants:
            self._counters.stop_waiting(request.service_class)

    def _head(self, tenant: DeadlineQueue[QueuedRequest], now: float) -> QueuedRequest | None:
        """Returns the next of a tenant's requests, and leaves it in place."""
        # The prefill of a request that is sent now begins after `wait_s`.
        late, _ = tenant.pass_time(now + self.lead_time.wait_s, self._overdue(now))
        for queued in late:
            if queued in self._in_time:
                self._in_time.remove(queued)
        return tenant.head()

    def _overdue(self, now: float) -> float:
        """Returns the time since when late requests have to wait to be overdue."""
        return now - OVERDUE_WAIT_SHARE * self.config.hold.max_wait_s


def _work(queued: QueuedRequest) -> int:
    """Returns the size of a request by which late ones get their share: prompt tokens, cached ones too, as the replica
    that will compute them is not known yet."""
    return max(1, queued.request.prompt_tokens)

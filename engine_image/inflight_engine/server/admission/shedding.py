"""Load shedding: immediate rejection of requests that would wait too long."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from math import inf

from inflight_engine.server.errors import ApiError
from inflight_settings.scheduling import ServiceClass


class Shedding:
    """Predicts how long the next request of a class would wait, from the prompt tokens that are computed before its
    own and the requests that take a slot before it, and rejects it if that exceeds the bound.

    Those are the tokens of requests in prefill, and tokens waiting before it in its own class, slowed down by the
    weights of other classes with waiting requests; never more than all waiting tokens. Under the `deadline` policy a
    request goes before those that are late, so while it can keep its target only requests in time count. The prediction
    leaves out the request's own prefill, so an idle engine rejects no request.

    Args:
        classes: their `shed_after` stands instead of `bound`.
        bound: seconds, of classes without their own; None: any wait.
        targets: of TTFT by class, where the policy orders by them.
        seconds_for: how long so many prompt tokens, and slots for so many requests, take; 0 before anything is
            measured, or where nothing runs.
        ttft_per_token: seconds that each token of a prompt adds to its target.
    """

    def __init__(
        self,
        classes: Iterable[ServiceClass],
        bound: float | None,
        targets: Mapping[str, float],
        seconds_for: Callable[[float, float], float],
        ttft_per_token: float = 0.0,
    ) -> None:
        self._bounds = {each.name: bound if each.shed_after is None else each.shed_after for each in classes}
        self._waiting = {name: _Waiting(targets.get(name, inf), ttft_per_token) for name in self._bounds}
        self._seconds_for = seconds_for

    def enter(self, service_class: str, request_id: int, arrived: float, num_tokens: int) -> None:
        """Adds a waiting request with a number of prompt tokens."""
        self._waiting[service_class].enter(request_id, arrived, num_tokens)

    def leave(self, service_class: str, request_id: int) -> None:
        """Admitted, or ended while it waited."""
        self._waiting[service_class].leave(request_id)

    def refusal(
        self,
        service_class: str,
        now: float,
        uncomputed: int,
        weights: Mapping[str, float],
        num_tokens: int | None = None,
    ) -> ApiError | None:
        """Why a request may not wait now; None: it may.

        Args:
            now: seconds, monotonic.
            uncomputed: prompt tokens of all requests, waiting or in prefill.
            weights: of all classes.
            num_tokens: of its prompt; None: not known yet, and it is refused only if it would be with any.
        """
        bound = self._bounds[service_class]
        if bound is None:
            return None
        predicted = self._predicted(service_class, now, uncomputed, weights, num_tokens)
        if predicted <= bound:
            return None
        return ApiError(
            503,
            f"the request would wait for about {predicted:.1f} s, and --shed-after allows {bound:g} s for class "
            f"{service_class}; try again later or add replicas",
            code="overloaded",
            retry_after=predicted - bound,
        )

    def _predicted(
        self, service_class: str, now: float, uncomputed: int, weights: Mapping[str, float], num_tokens: int | None
    ) -> float:
        own = self._waiting[service_class]
        in_prefill = max(0, uncomputed - sum(each.num_tokens for each in self._waiting.values()))
        competing = sum(weights[name] for name, each in self._waiting.items() if len(each) or each is own)
        slowed = competing / weights[service_class]

        waiting = sum(len(each) for each in self._waiting.values())

        def wait_behind(num_tokens: int, num_requests: int) -> float:
            slots = min(waiting, num_requests * slowed) + 1
            return self._seconds_for(min(uncomputed, in_prefill + num_tokens * slowed), slots)

        in_time = wait_behind(own.tokens_in_time(now), own.num_in_time)
        return in_time if in_time <= own.target_of(num_tokens) else wait_behind(own.num_tokens, len(own))


class _Waiting:
    """The waiting requests of a class.

    Args:
        target: seconds from arrival in which a request is in time.
        per_token: seconds that each token of its prompt adds to them.

    Attributes:
        num_tokens: prompt tokens of all of them.
    """

    def __init__(self, target: float, per_token: float) -> None:
        self.num_tokens = 0
        self._target, self._per_token = target, per_token
        self._requests: dict[int, tuple[float, int]] = {}
        """Until when each is in time, and its prompt tokens."""
        self._in_time: list[tuple[float, int]] = []
        """Until when, and which, ascending."""
        self._num_in_time = 0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def num_in_time(self) -> int:
        """Requests that `tokens_in_time` counted last."""
        return len(self._in_time)

    def target_of(self, num_tokens: int | None) -> float:
        """Of a prompt of so many tokens; None: of any, however long."""
        if num_tokens is None:
            return inf if self._per_token else self._target
        return self._target + self._per_token * num_tokens

    def enter(self, request_id: int, arrived: float, num_tokens: int) -> None:
        until = arrived + self.target_of(num_tokens)
        self._requests[request_id] = until, num_tokens
        insort(self._in_time, (until, request_id))
        self.num_tokens += num_tokens
        self._num_in_time += num_tokens

    def leave(self, request_id: int) -> None:
        until, num_tokens = self._requests.pop(request_id)
        self.num_tokens -= num_tokens
        place = bisect_left(self._in_time, (until, request_id))
        if self._in_time[place : place + 1] == [(until, request_id)]:
            del self._in_time[place]
            self._num_in_time -= num_tokens

    def tokens_in_time(self, now: float) -> int:
        late = bisect_left(self._in_time, (now,))
        self._num_in_time -= sum(self._requests[request_id][1] for _, request_id in self._in_time[:late])
        del self._in_time[:late]
        return self._num_in_time

"""Requests that are refused at once because they would wait for too long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf

from inflight_engine.scheduling.config import ServiceClass
from inflight_engine.server.errors import ApiError


class Shedding:
    """Predicts how long the next request of a class would wait, from the prompt tokens that are computed before its
    own, and refuses it where that is more than the bound.

    Those are the tokens of requests in prefill, and of its own class what waits before it, slowed down by the weights
    of the other classes that have requests waiting; never more than all tokens that are to be computed. Under the
    `deadline` policy a request goes before those that are late, so while it can keep its target only requests in time
    count. The prediction leaves out the request's own prefill, so an engine with nothing to compute refuses nothing.

    Args:
        classes: their `shed_after` stands instead of `bound`.
        bound: seconds, of classes without their own; None: any wait.
        targets: of TTFT by class, where the policy orders by them.
        seconds_for: how long so many prompt tokens take; 0 before anything is measured.
    """

    def __init__(
        self,
        classes: Iterable[ServiceClass],
        bound: float | None,
        targets: Mapping[str, float],
        seconds_for: Callable[[float], float],
    ) -> None:
        self._bounds = {each.name: bound if each.shed_after is None else each.shed_after for each in classes}
        self._waiting = {name: _Waiting(targets.get(name, inf)) for name in self._bounds}
        self._seconds_for = seconds_for

    def enter(self, service_class: str, request_id: int, arrived: float, num_tokens: int) -> None:
        """A request with so many prompt tokens waits."""
        self._waiting[service_class].enter(request_id, arrived, num_tokens)

    def leave(self, service_class: str, request_id: int) -> None:
        """Admitted, or ended while it waited."""
        self._waiting[service_class].leave(request_id)

    def refusal(self, service_class: str, now: float, uncomputed: int, weights: Mapping[str, float]) -> ApiError | None:
        """Why a request may not wait now; None: it may.

        Args:
            now: seconds, monotonic.
            uncomputed: prompt tokens of all requests, waiting or in prefill.
            weights: of all classes.
        """
        bound = self._bounds[service_class]
        if bound is None:
            return None
        predicted = self._predicted(service_class, now, uncomputed, weights)
        if predicted <= bound:
            return None
        return ApiError(
            503,
            f"the request would wait for about {predicted:.1f} s, and --shed-after allows {bound:g} s for class "
            f"{service_class}; try again later or add replicas",
            code="overloaded",
            retry_after=predicted - bound,
        )

    def _predicted(self, service_class: str, now: float, uncomputed: int, weights: Mapping[str, float]) -> float:
        own = self._waiting[service_class]
        in_prefill = max(0, uncomputed - sum(each.num_tokens for each in self._waiting.values()))
        competing = sum(weights[name] for name, each in self._waiting.items() if len(each) or each is own)
        slowed = competing / weights[service_class]

        def wait_behind(num_tokens: int) -> float:
            return self._seconds_for(min(uncomputed, in_prefill + num_tokens * slowed))

        in_time = wait_behind(own.tokens_in_time(now))
        return in_time if in_time <= own.target else wait_behind(own.num_tokens)


class _Waiting:
    """The waiting requests of a class.

    Attributes:
        target: seconds from arrival in which a request is in time.
        num_tokens: prompt tokens of all of them.
    """

    def __init__(self, target: float) -> None:
        self.target = target
        self.num_tokens = 0
        self._requests: dict[int, int] = {}
        self._in_time: dict[int, float] = {}
        """When they arrived, in the order of arrival."""
        self._num_in_time = 0

    def __len__(self) -> int:
        return len(self._requests)

    def enter(self, request_id: int, arrived: float, num_tokens: int) -> None:
        self._requests[request_id] = num_tokens
        self._in_time[request_id] = arrived
        self.num_tokens += num_tokens
        self._num_in_time += num_tokens

    def leave(self, request_id: int) -> None:
        num_tokens = self._requests.pop(request_id)
        self.num_tokens -= num_tokens
        if self._in_time.pop(request_id, None) is not None:
            self._num_in_time -= num_tokens

    def tokens_in_time(self, now: float) -> int:
        while self._in_time:
            request_id, arrived = next(iter(self._in_time.items()))
            if arrived + self.target >= now:
                break
            del self._in_time[request_id]
            self._num_in_time -= self._requests[request_id]
        return self._num_in_time

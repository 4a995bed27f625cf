"""The count of requests that wait for the engine to admit them, in total and by class."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from math import inf

from inflight_settings.scheduling import ServiceClass


class WaitingRequests:
    """Requests that were sent to the engine and not admitted by it, or not again since its process was lost.

    Args:
        targets: of TTFT by class, where the policy orders by them.
        ttft_per_token: seconds that each token of a prompt adds to its target.
    """

    def __init__(
        self, classes: Iterable[ServiceClass], targets: Mapping[str, float] | None = None, ttft_per_token: float = 0.0
    ) -> None:
        targets = targets or {}
        self.classes = {each.name: WaitingOfClass(targets.get(each.name, inf), ttft_per_token) for each in classes}

    @property
    def num_requests(self) -> int:
        return sum(len(each) for each in self.classes.values())

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of all waiting requests, and of those that are to follow them."""
        return sum(each.num_tokens for each in self.classes.values())

    @property
    def by_class(self) -> dict[str, int]:
        """Number of requests of each class."""
        return {name: len(each) for name, each in self.classes.items()}

    def enter(self, service_class: str, request_id: int, arrived: float, num_tokens: int) -> None:
        """Add a waiting request with a number of prompt tokens."""
        self.classes[service_class].enter(request_id, arrived, num_tokens)

    def leave(self, service_class: str, request_id: int) -> None:
        """A request was admitted, or ended while it waited."""
        self.classes[service_class].leave(request_id)

    def hold(self, service_class: str, num_tokens: int) -> None:
        """Count the prompt tokens of a request that is to follow another of its body into the queue; it has no place
        yet. Negative: no longer."""
        self.classes[service_class].num_tokens += num_tokens


class WaitingOfClass:
    """The waiting requests of a class.

    Args:
        target: seconds from arrival in which a request is in time.
        per_token: seconds that each token of its prompt adds to them.

    Attributes:
        num_tokens: prompt tokens of all of them, and of those that are to follow them.
    """

    def __init__(self, target: float, per_token: float) -> None:
        self.num_tokens = 0
        self._target, self._per_token = target, per_token
        self._requests: dict[int, tuple[float, int]] = {}
        """Time until which each request is in time, and its prompt tokens."""
        self._in_time: list[tuple[float, int]] = []
        """The same times with request ids, ascending."""
        self._tokens_in_time = 0

    def __len__(self) -> int:
        return len(self._requests)

    def target_of(self, num_tokens: int | None) -> float:
        """Target of a prompt of so many tokens; None: of any, however long."""
        if num_tokens is None:
            return inf if self._per_token else self._target
        return self._target + self._per_token * num_tokens

    def enter(self, request_id: int, arrived: float, num_tokens: int) -> None:
        until = arrived + self.target_of(num_tokens)
        self._requests[request_id] = until, num_tokens
        insort(self._in_time, (until, request_id))
        self.num_tokens += num_tokens
        self._tokens_in_time += num_tokens

    def leave(self, request_id: int) -> None:
        until, num_tokens = self._requests.pop(request_id)
        self.num_tokens -= num_tokens
        place = bisect_left(self._in_time, (until, request_id))
        if self._in_time[place : place + 1] == [(until, request_id)]:
            del self._in_time[place]
            self._tokens_in_time -= num_tokens

    def in_time(self, now: float) -> tuple[int, int]:
        """Prompt tokens and number of the requests that can still keep their targets."""
        late = bisect_left(self._in_time, (now,))
        self._tokens_in_time -= sum(self._requests[request_id][1] for _, request_id in self._in_time[:late])
        del self._in_time[:late]
        return self._tokens_in_time, len(self._in_time)

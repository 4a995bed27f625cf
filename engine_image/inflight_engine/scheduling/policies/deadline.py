"""The oldest request that can still keep its TTFT target."""

from __future__ import annotations

import math

from inflight_engine.request import Request
from inflight_engine.scheduling.policies.base import Policy
from inflight_policies.deadline import DeadlineQueue
from inflight_settings.scheduling import SchedulingSettings


class Deadline(Policy):
    """By arrival among the requests that can still keep their TTFT target, which is until `Request.latest_start`. Late
    requests get `late_share` of the prompt tokens, the oldest first, and one pick in five once that has waited for
    `late_wait` (`DeadlineQueue`). Without any target the order is that of `fcfs`.

    Raises:
        ValueError: `late_share` is not above 0 and at most 1.
    """

    def __init__(self, config: SchedulingSettings) -> None:
        self._queue: DeadlineQueue[Request] = DeadlineQueue(_prompt_tokens, config.late_share)
        self._late_wait = config.late_wait
        self.num_late_tokens = 0

    def __len__(self) -> int:
        return len(self._queue)

    def push(self, request: Request, clock: int) -> None:
        self._queue.push(request, request.arrival_time, request.order, request.latest_start)

    def pass_time(self, now: float) -> bool:
        late, became_overdue = self._queue.pass_time(now, now - self._late_wait)
        for request in late:
            self.num_late_tokens += request.num_prompt_tokens
        return became_overdue or bool(late)

    def head(self, clock: int) -> Request | None:
        return self._queue.head()

    def firsts(self, count: int, clock: int) -> tuple[list[Request], float]:
        return self._queue.firsts(count), math.inf

    def picked(self, request: Request) -> None:
        self._left(request)
        self._queue.pick(request)

    def remove(self, request: Request) -> None:
        self._left(request)
        self._queue.remove(request)

    def _left(self, request: Request) -> None:
        if self._queue.is_late(request):
            self.num_late_tokens -= request.num_prompt_tokens


def _prompt_tokens(request: Request) -> int:
    return request.num_prompt_tokens

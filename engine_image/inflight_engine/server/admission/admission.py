"""Admission of requests to the queue of the engine: bounds on what waits, and load shedding."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from inflight_contract.errors import ApiError, bad_request
from inflight_engine.server.admission.demand import Demand, Load
from inflight_engine.server.admission.shedding import Shedding
from inflight_engine.server.admission.waiting import WaitingRequests
from inflight_engine.server.settings.config import ServerConfig

LONGEST_RETRY_AFTER = 60.0
"""Seconds."""


class QueueAdmission:
    """Decides from values whether requests may wait.

    Attributes:
        waiting: requests that wait; the registry of requests keeps it.
        demand: measurements for predictions; the registry keeps them too.
    """

    def __init__(self, config: ServerConfig) -> None:
        engine = config.engine
        targets = engine.ttft_targets if engine.policy == "deadline" else {}
        self.waiting = WaitingRequests(engine.classes, targets, engine.ttft_per_token)
        self.demand = Demand()
        self._max_requests, self._max_tokens = config.max_queued_requests, config.max_queued_tokens
        self._class_bounds = {each.name: each.max_queued_requests for each in engine.classes}
        self._shedding = Shedding(self.waiting, engine.classes, config.shed_after)

    def share(self, service_class: str) -> int:
        """Returns how many requests of one body may be in the queue at once, where the others can follow: half of its
        places, so that lists longer than the queue are taken, and leave room for others."""
        bounds = (self._max_requests, self._class_bounds[service_class])
        return max(1, min(most for most in bounds if most is not None) // 2)

    def refusal(
        self,
        service_class: str,
        num_requests: int,
        num_tokens: Sequence[int],
        load: Load,
        weights: Mapping[str, float],
        field: str,
    ) -> tuple[str, ApiError] | None:
        """Why a number of requests may not wait now, with the reason's short name; None: they may.

        Args:
            num_requests: that enter the queue at once.
            num_tokens: of each prompt of the body; empty before they are known.
            weights: of all classes.
            field: of the body that makes so many requests, or has the prompts.
        """
        full = self._full(service_class, num_requests, sum(num_tokens), load, field)
        if full is not None:
            return full
        # All are accepted or none: the shortest prompt has the least time.
        shortest = min(num_tokens, default=None)
        # The engine's last message may be older than the end of its requests.
        idle = load.num_requests == 0

        def seconds_for(num_tokens: float, num_requests: float) -> float:
            return 0.0 if idle else self.demand.seconds_for(num_tokens, num_requests, load)

        uncomputed, now = 0 if idle else load.waiting_tokens, time.monotonic()
        shed = self._shedding.refusal(
            service_class, now, uncomputed, weights, seconds_for, shortest, self.demand.computed_share
        )
        return None if shed is None else ("shed", shed)

    def _full(
        self, service_class: str, num_requests: int, num_tokens: int, load: Load, field: str
    ) -> tuple[str, ApiError] | None:
        waiting, most_tokens = self.waiting, self._max_tokens
        for reason, num_waiting, most, where, flag in (
            ("queue_full", waiting.num_requests, self._max_requests, "the queue", "--max-queued-requests"),
            (
                "class_queue_full",
                len(waiting.classes[service_class]),
                self._class_bounds[service_class],
                f"the queue of class {service_class}",
                "max_queued of its --service-class",
            ),
        ):
            if most is None:
                continue
            if num_requests > most:
                return "never_fits", bad_request(
                    f"{field}: makes {num_requests} requests to the engine, and {where} holds at most {most} ({flag})",
                    param=field,
                )
            if num_waiting + num_requests > most:
                return reason, self._full_error(
                    f"{where} is full ({num_waiting} requests wait, and {flag} allows {most})", load
                )
        if most_tokens is None:
            return None
        if num_tokens > most_tokens:
            return "never_fits", bad_request(
                f"{field}: has {num_tokens} prompt tokens; --max-queued-tokens lets at most {most_tokens} wait",
                param=field,
            )
        if waiting.num_tokens + num_tokens > most_tokens:
            return "queue_tokens", self._full_error(
                f"the queue is full ({waiting.num_tokens} prompt tokens wait, and --max-queued-tokens allows "
                f"{most_tokens})",
                load,
            )
        return None

    def _full_error(self, why: str, load: Load) -> ApiError:
        message = f"{why}; try again later or add replicas"
        retry_after = min(self.demand.predicted_seconds(load), LONGEST_RETRY_AFTER)
        return ApiError(503, message, code="queue_full", retry_after=retry_after)

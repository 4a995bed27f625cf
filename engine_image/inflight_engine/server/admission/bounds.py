"""Admission bounds on waiting requests: exact counts, kept at the entry of requests."""

from __future__ import annotations

from inflight_engine.server.errors import ApiError, bad_request
from inflight_engine.server.settings.config import ServerConfig


class AdmissionQueue:
    """Counts requests sent to the engine and not yet admitted by it, in total and by class."""

    def __init__(self, config: ServerConfig) -> None:
        self._max_requests, self._max_tokens = config.max_queued_requests, config.max_queued_tokens
        self.tokens = 0
        self.by_class: dict[str, int] = {}
        self._class_bounds: dict[str, int | None] = {}
        for service_class in config.engine.classes:
            self.by_class[service_class.name] = 0
            self._class_bounds[service_class.name] = service_class.max_queued_requests

    @property
    def requests(self) -> int:
        return sum(self.by_class.values())

    def refusal(
        self, service_class: str, num_requests: int, num_tokens: int, retry_after: float
    ) -> tuple[str, ApiError] | None:
        """Why a number of requests with `num_tokens` prompt tokens in total may not wait now, with the reason's short
        name; None: they may."""
        class_bound = self._class_bounds[service_class]
        for reason, waiting, most, where, flag in (
            ("queue_full", self.requests, self._max_requests, "the queue", "--max-queued-requests"),
            (
                "class_queue_full",
                self.by_class[service_class],
                class_bound,
                f"the queue of class {service_class}",
                "max_queued of its --service-class",
            ),
        ):
            if most is None:
                continue
            if num_requests > most:
                return "never_fits", bad_request(
                    f"the request makes {num_requests} answers (prompts times n), and {where} holds at most {most} "
                    f"({flag})",
                    param="n",
                )
            if waiting + num_requests > most:
                return reason, _full(
                    f"{where} is full ({waiting} requests wait, and {flag} allows {most})", retry_after
                )
        if self._max_tokens is None:
            return None
        if num_tokens > self._max_tokens:
            return "never_fits", bad_request(
                f"the request has {num_tokens} prompt tokens; --max-queued-tokens lets at most {self._max_tokens} wait",
                param="prompt",
            )
        if self.tokens + num_tokens > self._max_tokens:
            return "queue_tokens", _full(
                f"the queue is full ({self.tokens} prompt tokens wait, and --max-queued-tokens allows "
                f"{self._max_tokens})",
                retry_after,
            )
        return None

    def enter(self, service_class: str, num_tokens: int) -> None:
        self.by_class[service_class] += 1
        self.tokens += num_tokens

    def leave(self, service_class: str, num_tokens: int) -> None:
        """Admitted, or ended while it waited."""
        self.by_class[service_class] -= 1
        self.tokens -= num_tokens


def _full(why: str, retry_after: float) -> ApiError:
    message = f"{why}; try again later or add replicas"
    return ApiError(503, message, code="queue_full", retry_after=retry_after)

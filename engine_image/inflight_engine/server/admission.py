"""How many requests may wait for the engine: exact counts, kept where requests enter."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_engine.server.errors import ApiError, bad_request


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Attributes:
    max_requests: most requests not yet admitted by the engine.
    max_tokens: most prompt tokens among them; None: any number.
    """

    max_requests: int
    max_tokens: int | None = None


class AdmissionQueue:
    """Counts the requests that were sent to the engine and have not been admitted by it."""

    def __init__(self, bounds: QueueBounds) -> None:
        self.bounds = bounds
        self.requests = 0
        self.tokens = 0

    def refusal(self, num_tokens: int, retry_after: float) -> tuple[str, ApiError] | None:
        """Why a request of `num_tokens` prompt tokens may not wait now, with the reason's short name; None: it may."""
        if self.requests >= self.bounds.max_requests:
            return "queue_full", ApiError(
                503,
                f"the queue is full ({self.requests} requests wait, the most that --max-queued-requests allows); "
                "try again later or add replicas",
                code="queue_full",
                retry_after=retry_after,
            )
        if self.bounds.max_tokens is None:
            return None
        if num_tokens > self.bounds.max_tokens:
            return "never_fits", bad_request(
                f"the prompt has {num_tokens} tokens; --max-queued-tokens lets at most {self.bounds.max_tokens} wait",
                param="prompt",
            )
        if self.tokens + num_tokens > self.bounds.max_tokens:
            return "queue_tokens", ApiError(
                503,
                f"the queue is full ({self.tokens} prompt tokens wait, and --max-queued-tokens allows "
                f"{self.bounds.max_tokens}); try again later or add replicas",
                code="queue_full",
                retry_after=retry_after,
            )
        return None

    def enter(self, num_tokens: int) -> None:
        self.requests += 1
        self.tokens += num_tokens

    def leave(self, num_tokens: int) -> None:
        """Admitted, or ended while it waited."""
        self.requests -= 1
        self.tokens -= num_tokens

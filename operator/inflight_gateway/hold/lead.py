"""Lead time between the start of a request and its deadline."""

from __future__ import annotations

from inflight_gateway.types import Pick, RequestView

_SHARE = 0.1
"""Of the latest start in the means."""

MARGIN_SHARE = 0.2
"""Of the TTFT target. In an overload the oldest request in time is always one that is about to be late, so without a
margin every other start is one that comes too late after all."""


class Lead:
    """Learned from what was predicted of a service's latest starts.

    Attributes:
        wait_s: from the start to the begin of the request's own prefill.
        token_s: prefill of one token.
    """

    def __init__(self) -> None:
        self.wait_s = 0.0
        self.token_s = 0.0

    def started(self, request: RequestView, pick: Pick) -> None:
        if pick.predicted_ttft_s is None or pick.prefill_s is None:
            return
        self.wait_s += _SHARE * (pick.predicted_ttft_s - pick.prefill_s - self.wait_s)
        computed = request.prompt_tokens - pick.cached_tokens
        if computed > 0:
            self.token_s += _SHARE * (pick.prefill_s / computed - self.token_s)

    def latest_start(self, request: RequestView) -> float:
        """The latest start, without `wait_s`, which changes."""
        return request.deadline - self.token_s * request.prompt_tokens

    def wait(self, ttft_s: float) -> float:
        return self.wait_s + MARGIN_SHARE * ttft_s

"""Load shedding: immediate rejection of requests that would wait too long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from inflight_contract.errors import ApiError
from inflight_engine.server.admission.waiting import WaitingRequests
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
    """

    def __init__(self, waiting: WaitingRequests, classes: Iterable[ServiceClass], bound: float | None) -> None:
        self._waiting = waiting
        self._bounds = {each.name: bound if each.shed_after is None else each.shed_after for each in classes}

    def refusal(
        self,
        service_class: str,
        now: float,
        uncomputed: int,
        weights: Mapping[str, float],
        seconds_for: Callable[[float, float], float],
        num_tokens: int | None = None,
        computed_share: float = 1.0,
    ) -> ApiError | None:
        """Why a request may not wait now; None: it may.

        Args:
            now: seconds, monotonic.
            uncomputed: prompt tokens of all requests, waiting or in prefill.
            weights: of all classes.
            seconds_for: how long so many prompt tokens, and slots for so many requests, take; 0 before anything is
                measured, or where nothing runs.
            num_tokens: of its prompt; None: not known yet, and it is refused only if it would be with any.
            computed_share: of the tokens of waiting prompts, those that the prefix cache is not expected to have.
        """
        bound = self._bounds[service_class]
        if bound is None:
            return None
        own = self._waiting.classes[service_class]
        in_prefill = max(0, uncomputed - self._waiting.num_tokens)
        most = in_prefill + (uncomputed - in_prefill) * computed_share
        competing = sum(weights[name] for name, each in self._waiting.classes.items() if len(each) or each is own)
        slowed = competing / weights[service_class]
        waiting = self._waiting.num_requests

        def wait_behind(before: int, num_requests: int) -> float:
            slots = min(waiting, num_requests * slowed) + 1
            return seconds_for(min(most, in_prefill + before * computed_share * slowed), slots)

        predicted = wait_behind(*own.in_time(now))
        if predicted > own.target_of(num_tokens):
            predicted = wait_behind(own.num_tokens, len(own))
        if predicted <= bound:
            return None
        return ApiError(
            503,
            f"the request would wait for about {predicted:.1f} s, and --shed-after allows {bound:g} s for class "
            f"{service_class}; try again later or add replicas",
            code="overloaded",
            retry_after=predicted - bound,
        )

"""All inputs of the scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from inflight_cost.model import CostModel
from inflight_engine.cache.block_pool import BlockIds
from inflight_engine.cache.loading import LoadRates
from inflight_engine.recording.recorder import Recorder
from inflight_engine.request import FinishReason, Request
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_settings.limits import LimitsInForce


class SchedulerInputs:
    """Passes each input to the scheduler, then to the recorder.

    Attributes:
        limits: in force from the next step, and their revision, which the scheduler does not need.
    """

    def __init__(self, scheduler: Scheduler, recorder: Recorder | None) -> None:
        self.limits = LimitsInForce(scheduler.limits)
        self._scheduler = scheduler
        self._recorder = recorder

    def add(self, request: Request) -> None:
        """Raises ValueError: the scheduler refuses it."""
        self._scheduler.add(request)
        if self._recorder is not None:
            self._recorder.added(request)

    def cancel(self, request_id: int, reason: FinishReason) -> bool:
        """End a request; False: there is none of that id."""
        known = self._scheduler.cancel(request_id, reason)
        if known and self._recorder is not None:
            self._recorder.cancelled(request_id, reason)
        return known

    def configure(self, limits: LimitsInForce, class_weights: dict[str, float]) -> None:
        """Raises ValueError: no such class, or a weight that is not a number above 0. Nothing is changed."""
        if class_weights:  # first: only they can be refused
            self._scheduler.set_class_weights(class_weights)
            if self._recorder is not None:
                self._recorder.weights(class_weights)
        if limits != self.limits:
            self.limits, self._scheduler.limits = limits, limits.limits
            if self._recorder is not None:
                self._recorder.limits(limits)

    def forget_cache(self) -> None:
        """Raises ValueError: there are requests."""
        self._scheduler.forget_cache()
        if self._recorder is not None:
            self._recorder.cache_forgotten()

    def fetch(self, number: int, hashes: Sequence[bytes]) -> tuple[list[int], BlockIds]:
        """See `Offload.fetch`."""
        fetch = self._scheduler.offload.fetch(number, hashes)
        if self._recorder is not None:
            self._recorder.fetching(number, hashes)
        return fetch

    def fetched(self, number: int, count: int) -> None:
        """See `Offload.fetched`."""
        self._scheduler.offload.fetched(number, count)
        if self._recorder is not None:
            self._recorder.fetched(number, count)

    def set_rates(self, rates: LoadRates) -> None:
        self._scheduler.offload.rates = rates
        if self._recorder is not None:
            self._recorder.rates(rates)

    def set_prefill_cost(self, cost: CostModel | None) -> None:
        """`cost`: None: no model fits well enough."""
        self._scheduler.deadlines.cost = cost
        if self._recorder is not None:
            self._recorder.prefill_cost(cost)

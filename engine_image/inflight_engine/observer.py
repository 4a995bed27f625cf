"""The hook of the engine's loop, for recordings and other observers of the scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from inflight_cost.model import CostModel, StepWork
from inflight_engine.cache.swap import SwapRates
from inflight_engine.request import FinishReason, Request
from inflight_engine.scheduling.plan import StepPlan
from inflight_settings.limits import LimitsInForce


class EngineObserver:
    """Receives each input and each decision of the scheduler right after it, in order, and changes nothing. An observer
    overrides the methods that it needs."""

    def added(self, request: Request) -> None:
        """The scheduler took in a request."""

    def cancelled(self, request_id: int, reason: FinishReason) -> None:
        """A request that was there was ended from outside."""

    def limits(self, limits: LimitsInForce) -> None:
        """Other limits are in force."""

    def weights(self, weights: dict[str, float]) -> None:
        """Some service classes have other weights."""

    def rates(self, rates: SwapRates | None) -> None:
        """The scheduler weighs swapping by other rates."""

    def prefill_cost(self, cost: CostModel | None) -> None:
        """The scheduler predicts prefills by another cost model; None: by none."""

    def time_passed(self, step: int, now: float) -> None:
        """The scheduler was asked for a step, and `now` is its `last_change`."""

    def stepped(
        self,
        plan: StepPlan,
        work: StepWork,
        ended: list[Request],
        seconds: float,
        *,
        ahead: bool = False,
        failed_slots: Sequence[int] = (),
    ) -> None:
        """A step was planned, computed and taken in.

        Args:
            work: what it computed.
            ended: what `Scheduler.update` returned.
            seconds: how long the whole step took.
            ahead: between the step's plan and its `update` the scheduler was asked for the next one.
            failed_slots: slots that the step had no memory for, with which `Scheduler.fail_slots` was called.
        """

    def failed(self, plan: StepPlan, work: StepWork, seconds: float, *, ahead: bool = False) -> None:
        """A step was planned but gave no tokens: `Scheduler.fail` was called for it or for the step before, and
        `Scheduler.update` was not. `ahead` as in `stepped`."""

    def flush(self) -> None:
        """Write all events so far: it may be long until the next step."""

    def close(self) -> None:
        """The engine ends."""

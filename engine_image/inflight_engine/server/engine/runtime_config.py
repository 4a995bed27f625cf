"""Configuration that can change at runtime: the two limits, and the weights of service classes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from inflight_contract.errors import ApiError, bad_request
from inflight_contract.limits import changed_limits
from inflight_engine.messages import Configure, Configured
from inflight_engine.server.engine.calls import EngineCalls
from inflight_settings.limits import Limits, LimitsInForce, PartialLimits
from inflight_settings.scheduling import ServiceClass


class RuntimeConfig:
    """The configuration in force, as reported by the engine.

    Attributes:
        limits: None until the engine applied or confirmed the first ones.
        revision: of the limits.
        class_weights: of all classes, in their order.
    """

    def __init__(self, classes: Sequence[ServiceClass], calls: EngineCalls) -> None:
        self.limits: Limits | None = None
        self.revision = 0
        self.class_weights = {service_class.name: service_class.weight for service_class in classes}
        self._calls = calls
        self._changing = asyncio.Lock()

    async def start(self, limits: LimitsInForce, capacity: Limits) -> None:
        """The engine starts with its capacity."""
        if limits != LimitsInForce(capacity):
            await self._calls.ask(lambda call_id: Configure(call_id, limits))
        self.limits, self.revision = limits.limits, limits.revision

    def restore(self) -> None:
        """Apply the current limits and weights to the new engine process. They are sent before anything else."""
        if self.limits is not None:
            limits = LimitsInForce(self.limits, self.revision)
            self._calls.tell(lambda call_id: Configure(call_id, limits, self.class_weights))

    async def change(
        self, change: PartialLimits, revision: int | None, class_weights: Mapping[str, float], capacity: Limits
    ) -> None:
        """Apply all of it, or nothing.

        Args:
            class_weights: of the classes whose weight changes.

        Raises:
            ApiError: 400 a value is out of range or a class unknown, 409 the revision is an older one, 503 no engine is
                running, 504 it does not respond (if it responds later, the change is in force then).
        """
        async with self._changing:
            if self.limits is None:
                raise ApiError(503, "the model is still loading", code="loading", retry_after=1)
            current = LimitsInForce(self.limits, self.revision)
            limits = changed_limits(current, capacity, change, revision)
            weights = _changed_weights(self.class_weights, class_weights)
            if limits != current or weights:
                await self._calls.ask(lambda call_id: Configure(call_id, limits, weights))

    def applied(self, answer: Configured) -> None:
        self.limits, self.revision = answer.limits.limits, answer.limits.revision
        self.class_weights = {name: answer.class_weights[name] for name in self.class_weights}


def _changed_weights(current: Mapping[str, float], change: Mapping[str, float]) -> dict[str, float]:
    for name in change:
        if name not in current:
            raise bad_request(
                f"class_weights: there is no class {name!r}; this server has: {', '.join(current)}", "class_weights"
            )
    return {name: weight for name, weight in change.items() if weight != current[name]}

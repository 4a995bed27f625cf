"""Which tenant was served least: virtual token counters over all replicas of a service.

The rules are those of Sheng et al. 2024, "Fairness in Serving Large Language Models" (OSDI): prompt tokens count 1 and
output tokens 2, divided by the tenant's weight; of the tenants that wait, the one with the smallest counter is next; a
tenant that comes back from rest is lifted to the smallest counter of those that are active, so that nobody saves up.
The paper counts output tokens as they are generated. The gateway counts the expected ones when a request is sent to a
replica (the paper's variant with predicted lengths), and corrects them when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight_gateway.tenants.accounts import TenantKey
from inflight_gateway.types import ServiceKey

PROMPT_TOKEN = 1.0
OUTPUT_TOKEN = 2.0

FIRST_ANSWER = 256.0
"""Output tokens that are expected of a tenant's first request without `max_tokens`."""

_LEARNING = 0.1
"""Weight of the newest answer in the mean of a tenant."""

MAX_RESTING = 10_000
"""Tenants without requests that are remembered."""


@dataclass(slots=True)
class _Share:
    """Attributes: active: requests that wait or run. mean_output: output tokens of an answer."""

    served: float
    active: int = 0
    mean_output: float = FIRST_ANSWER


class FairShares:
    """The counters of all services."""

    def __init__(self) -> None:
        self._services: dict[ServiceKey, dict[str, _Share]] = {}

    def served(self, service: ServiceKey, tenant: str) -> float:
        """Tokens that the tenant was served, weighted; of an unknown tenant, those that it would begin with.

        `HoldQueue` lets the tenant with the smallest value go first.
        """
        shares = self._services.get(service, {})
        share = shares.get(tenant)
        return self._level(shares) if share is None else share.served

    def expected_output(self, key: TenantKey) -> int:
        """Output tokens of a request that does not say `max_tokens`: the mean of the tenant's answers."""
        share = self._services.get(key.service, {}).get(key.tenant)
        return round(FIRST_ANSWER if share is None else share.mean_output)

    def came(self, key: TenantKey) -> None:
        """A request was admitted; it waits or runs until `left`."""
        shares = self._services.setdefault(key.service, {})
        level = self._level(shares)
        share = shares.get(key.tenant)
        if share is None:
            self._forget_resting(shares)
            share = shares[key.tenant] = _Share(level)
        if not share.active:
            share.served = max(share.served, level)
        share.active += 1

    def add(self, key: TenantKey, prompt_tokens: float, output_tokens: float, weight: float) -> None:
        """Serves the tenant so many tokens; negative ones correct what was expected."""
        share = self._services[key.service][key.tenant]
        share.served += (PROMPT_TOKEN * prompt_tokens + OUTPUT_TOKEN * output_tokens) / weight

    def left(self, key: TenantKey, output_tokens: int | None) -> None:
        """A request ended. Args: output_tokens: of its answer; None: it had none, or nobody knows."""
        share = self._services[key.service][key.tenant]
        share.active -= 1
        if output_tokens is not None:
            share.mean_output += _LEARNING * (output_tokens - share.mean_output)

    @staticmethod
    def _level(shares: dict[str, _Share]) -> float:
        active = [share.served for share in shares.values() if share.active]
        if active:
            return min(active)
        return max((share.served for share in shares.values()), default=0.0)

    @staticmethod
    def _forget_resting(shares: dict[str, _Share]) -> None:
        if len(shares) >= MAX_RESTING:
            for tenant in [name for name, share in shares.items() if not share.active]:
                del shares[tenant]

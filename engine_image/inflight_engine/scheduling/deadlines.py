"""Latest time at which a request can start and keep its TTFT target."""

from __future__ import annotations

from math import inf

from inflight_cost.latest_start import latest_start
from inflight_cost.model import CostModel
from inflight_engine.cache.block_pool import BlockPool
from inflight_engine.cache.offload import Offload
from inflight_engine.request import Request
from inflight_engine.scheduling.config import SchedulerConfig


class Deadlines:
    """TTFT targets by service class, for the policy that orders by them.

    Attributes:
        cost: predicts what a prefill takes; None: not known, and counted as nothing.
        offload: predicts loads.
    """

    def __init__(self, config: SchedulerConfig, pool: BlockPool, offload: Offload) -> None:
        self.offload = offload
        self.cost: CostModel | None = None
        self._pool = pool
        self._targets = config.ttft_targets
        self._per_token = config.ttft_per_token

    def latest_start(self, request: Request, num_running: int, max_num_batched_tokens: int) -> float:
        """`latest_start` by arrival + target - loading what the tier has of the prompt, for the rest of it. In seconds,
        on the clock of `Request.arrival_time`; infinite without a target.

        All of it as it is when the request arrives: the cost model, what the prefix cache and the tier have of the
        prompt, the budget and the running requests. A request is in time for no longer than its target, so little of it
        changes.
        """
        target = self._targets.get(request.scheduling.service_class)
        if target is None:
            return inf
        target += self._per_token * request.num_prompt_tokens
        latest, cost, pool = request.arrival_time + target, self.cost, self._pool
        if cost is None:
            return latest
        num_tokens, size = request.num_prompt_tokens, pool.block_size
        # At least one token has to be computed, for its logits.
        hashes = request.block_hashes[: (num_tokens - 1) // size]
        num_cached = len(pool.match(hashes))
        loaded, loading = self.offload.predicted(hashes[num_cached:], num_cached * size)
        cached = num_cached * size + loaded
        return latest_start(
            cost,
            latest - loading,
            target,
            computed=num_tokens - cached,
            cached=cached,
            num_running=num_running,
            kv_tokens=(pool.num_blocks - pool.num_free) * size,
            max_num_batched_tokens=max_num_batched_tokens,
        )

"""Until when a request must start to keep its TTFT target."""

from __future__ import annotations

from math import inf

from inflight_cost.model import CostModel, StepWork
from inflight_engine.cache.block_counter import BlockCounter
from inflight_engine.cache.block_pool import BlockPool
from inflight_engine.request import Request
from inflight_engine.scheduling.config import SchedulerConfig


class Deadlines:
    """TTFT targets by service class, for the policy that orders by them.

    Attributes:
        cost: predicts what a prefill takes; None: not known, and counted as nothing.
    """

    def __init__(self, config: SchedulerConfig, pool: BlockPool | BlockCounter) -> None:
        self.cost: CostModel | None = None
        self._pool = pool
        self._targets: dict[str, float] = {}
        if config.policy == "deadline":
            for each in config.classes:
                target = config.ttft_target if each.ttft_target is None else each.ttft_target
                if target is not None:
                    self._targets[each.name] = target

    def latest_start(self, request: Request, num_running: int) -> float:
        """Arrival + target - what computing the prompt adds to steps - one step of the decodes that run, in seconds on
        the clock of `Request.arrival_time`; infinite without a target.

        All of it as it is when the request arrives: what the prefix cache has of its prompt, who runs, and the cost
        model. It waits no longer than its target in that order, so none of it changes much.
        """
        target = self._targets.get(request.service_class)
        if target is None:
            return inf
        latest, cost, pool = request.arrival_time + target, self.cost, self._pool
        if cost is None:
            return latest
        num_tokens, size = request.num_prompt_tokens, pool.block_size
        # At least one token has to be computed, for its logits.
        cached = len(pool.match(request.block_hashes[: (num_tokens - 1) // size])) * size
        decodes = StepWork(num_running, 0, (pool.num_blocks - pool.num_free) * size, 0)
        return latest - cost.prefill_seconds(num_tokens - cached, cached) - cost.seconds(decodes)

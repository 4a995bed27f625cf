"""Latest times at which a request can start and keep its TTFT target and its timeouts."""

from __future__ import annotations

from math import inf

from inflight_cost.latest_start import latest_start
from inflight_cost.model import CostModel
from inflight_engine.cache.block_pool import BlockPool
from inflight_engine.cache.offload import Offload
from inflight_engine.request import Request
from inflight_engine.scheduling.config import SchedulerConfig


class Deadlines:
    """TTFT targets and timeouts by service class: for the policy that orders by targets, and for requests that wait
    before they are added.

    Attributes:
        cost: predicts what a prefill takes; None: not known, and counted as nothing.
        offload: predicts loads.
    """

    def __init__(self, config: SchedulerConfig, pool: BlockPool, offload: Offload) -> None:
        self.offload = offload
        self.cost: CostModel | None = None
        self._pool = pool
        self._orders = config.policy == "deadline"
        self._targets = config.ttft_targets
        self._timeouts = config.request_timeouts
        self._longest_wait = config.late_wait
        self._per_token = config.ttft_per_token

    def latest_start(self, request: Request, num_running: int, max_num_batched_tokens: int) -> float:
        """`latest_start` by arrival + target - loading what the tier has of the prompt, for the rest of it. In seconds,
        on the clock of `Request.arrival_time`; infinite without a target, or where the policy does not order by it.

        All of it as it is when the request arrives: the cost model, what the prefix cache and the tier have of the
        prompt, the budget and the running requests. A request is in time for no longer than its target, so little of it
        changes.
        """
        target = self._target(request) if self._orders else inf
        return self._latest_start(request, target, self.cost, num_running, max_num_batched_tokens)

    def longest_wait(self, request: Request, num_running: int, max_num_batched_tokens: int, now: float) -> float:
        """Return the seconds that a request whose blocks are hashed may wait before it is added: half of the queue
        timeout at most, and until its latest starts by its TTFT target and by its request timeout. What it cannot keep
        even without the wait is no reason to begin sooner: it may keep it with what it waits for.

        Before steps have a cost, a prefill goes at the measured rate.
        """
        cost, rates = self.cost, self.offload.rates
        if cost is None and rates is not None:
            cost = CostModel(0.0, 0.0, 1 / rates.prefill, 0.0, 0.0)
        limits = self._target(request), self._timeouts.get(request.scheduling.service_class, inf)
        starts = [self._latest_start(request, each, cost, num_running, max_num_batched_tokens) for each in limits]
        return min([self._longest_wait, *(start - now for start in starts if start > now)])

    def _target(self, request: Request) -> float:
        """Return the TTFT target of a request; infinite: it has none."""
        return self._targets.get(request.scheduling.service_class, inf) + self._per_token * request.num_prompt_tokens

    def _latest_start(
        self, request: Request, target: float, cost: CostModel | None, num_running: int, max_num_batched_tokens: int
    ) -> float:
        """Return the latest start for a first token so many seconds after the arrival."""
        latest, pool = request.arrival_time + target, self._pool
        if cost is None or latest == inf:
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

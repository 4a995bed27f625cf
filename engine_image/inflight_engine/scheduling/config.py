"""Configuration of the scheduler, fixed at start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inflight_engine.request import DEFAULT_CLASS
from inflight_policies.deadline import LATE_SHARE
from inflight_policies.priority import PRIORITY_AGING_S
from inflight_settings.limits import Limits

PREEMPTION_MODES = ("auto", "recompute", "swap")


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """A kind of traffic with its own queue.

    Attributes:
        name: what requests put in `class`.
        weight: its share of admitted and generated tokens while several classes have requests waiting, above 0. When
            KV blocks run out, requests of the smallest weight are preempted first.
        priority: of its requests that bring no number, for the `priority` policy; smaller is earlier, and preempted
            later. It orders requests within the class: between classes of different weights only these decide.
        ttft_target, tpot_target: seconds; how many of its requests keep them is measured, and the `deadline` policy
            orders by the first. None: no target, or `SchedulerConfig.ttft_target`.
        max_queued_requests: most of its requests that wait; beyond it 503. None: only the bound of all classes.
        shed_after: seconds; a request that is predicted to wait longer gets 503. None: the server's bound.
        request_timeout: seconds; a request that gets no token for longer is ended. None: the server's bound.
    """

    name: str = DEFAULT_CLASS
    weight: float = 1.0
    priority: int = 0
    ttft_target: float | None = None
    tpot_target: float | None = None
    max_queued_requests: int | None = None
    shed_after: float | None = None
    request_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Sizes of the machine, and how to decide.

    Attributes:
        capacity: what the live limits may reach; the slot table has `capacity.max_num_seqs` rows.
        num_blocks, block_size: the KV cache.
        max_model_len: longest request, prompt plus output, in tokens.
        kv_headroom: share of the blocks that admission leaves free for growth, unless nothing else runs.
        policy: order of waiting requests within a class; a name of `policies.POLICIES`.
        priority_aging: seconds of waiting that count as one step of priority, for the `priority` policy.
        ttft_target: seconds, of classes without their own, for the `deadline` policy; None: no target.
        ttft_per_token: seconds that each token of a prompt adds to its target.
        late_share: of the picks that the `deadline` policy gives to requests that cannot keep their target any more,
            above 0 and at most 1.
        classes: at least one; a request that names none belongs to the first.
        preemption: one of `PREEMPTION_MODES`: `recompute`, `swap` (recompute where host memory is full), or `auto` (the
            cheaper by `SwapRates`).
        preemption_victim: which request to preempt: of the requests of least weight and, for the `priority`
            policy, of largest priority number; a name of `victims.VICTIMS`.
        num_host_blocks: blocks of host memory for swapped requests; 0: none.
        prefix_caching: keep full blocks of requests that ended, to be found again by content.
    """

    capacity: Limits
    num_blocks: int
    block_size: int
    max_model_len: int
    kv_headroom: float = 0.0
    policy: str = "fcfs"
    priority_aging: float = PRIORITY_AGING_S
    ttft_target: float | None = None
    ttft_per_token: float = 0.0
    late_share: float = LATE_SHARE
    classes: tuple[ServiceClass, ...] = (ServiceClass(),)
    preemption: str = "auto"
    preemption_victim: str = "last_arrived"
    num_host_blocks: int = 0
    prefix_caching: bool = True


def ttft_targets(policy: str, classes: Iterable[ServiceClass], default: float | None) -> dict[str, float]:
    """Seconds by class, of those that the policy orders by."""
    if policy != "deadline":
        return {}
    targets = {each.name: default if each.ttft_target is None else each.ttft_target for each in classes}
    return {name: target for name, target in targets.items() if target is not None}


def default_policy(ttft_target: float | None, classes: Iterable[ServiceClass]) -> str:
    """`deadline` where there is a TTFT target to order by, else `fcfs`."""
    targets = [ttft_target, *(each.ttft_target for each in classes)]
    return "fcfs" if all(target is None for target in targets) else "deadline"

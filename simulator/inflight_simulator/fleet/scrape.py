"""What a pod's /metrics shows."""

from __future__ import annotations

from inflight_operator.limits import Limits
from inflight_operator.observe.metrics import Sample
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.pods import Pod


def scraped(pod: Pod, config: FleetConfig, now: float) -> Sample:
    """
    Raises:
        ValueError: the pod has no meter.
    """
    if pod.meter is None:
        raise ValueError(f"{pod.name} is not metered")
    pod.replica.take_in_until(now)
    scheduler = pod.replica.scheduler
    ttft, tpot, itl, step_tokens = pod.meter.histograms()
    return Sample(
        time=now,
        running=scheduler.num_running,
        waiting=pod.replica.num_waiting,
        kv_usage=scheduler.kv_usage,
        preemptions=float(scheduler.num_preemptions),
        generation_tokens=float(pod.meter.generated),
        ttft=ttft,
        tpot=tpot,
        itl=itl,
        step_tokens=step_tokens,
        waiting_prompt_tokens=pod.replica.pending_tokens,
        limits=Limits(scheduler.limits.max_num_seqs, scheduler.limits.max_num_batched_tokens),
        capacity=Limits(*config.replica.capacity),
        revision=scheduler.limits.revision,
    )

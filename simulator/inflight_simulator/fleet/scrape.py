"""Sample of a pod's /metrics."""

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
    meter = pod.meter
    ttft, tpot, itl, step_tokens = meter.histograms()
    lengths = meter.output_length(((each.request_id, tokens) for each, tokens in scheduler.decoding()), now)
    measured = meter.cost(now)
    return Sample(
        time=now,
        running=scheduler.num_running,
        waiting=pod.replica.num_waiting,
        kv_usage=scheduler.kv_usage,
        preemptions=float(scheduler.num_preemptions),
        generation_tokens=float(meter.generated),
        ttft=ttft,
        tpot=tpot,
        itl=itl,
        step_tokens=step_tokens,
        waiting_prompt_tokens=pod.replica.pending_tokens,
        limits=Limits(scheduler.limits.max_num_seqs, scheduler.limits.max_num_batched_tokens),
        capacity=Limits(*config.capacity),
        revision=scheduler.limits.revision,
        prompt_tokens=float(meter.computed),
        arrived=float(meter.arrived_requests),
        arrived_tokens=float(meter.arrived_tokens),
        arrived_squares=float(meter.arrived_squares),
        output_mean=None if lengths is None else lengths.mean,
        output_square=None if lengths is None else lengths.second_moment,
        kv_tokens=config.replica.kv_tokens // config.replica.block_size * config.replica.block_size,
        cost=None if measured is None else measured.model,
        cost_error=None if measured is None else measured.error,
        cost_steps=0.0 if measured is None else measured.steps,
    )

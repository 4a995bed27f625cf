"""Connects a scaler to the fleet: its view of each pod, and its orders."""

from __future__ import annotations

from inflight_operator.observe.metrics import Sample
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.fleet import Fleet
from inflight_simulator.fleet.replicas.pods import Pod
from inflight_simulator.fleet.view import FleetView, PodState, Scaler


class ScalerController:
    """A `Scaler` as the fleet's controller."""

    def __init__(self, scaler: Scaler) -> None:
        self.interval_s = scaler.interval_s
        self._scaler = scaler

    def update(self, fleet: Fleet, now: float) -> None:
        view = view_of(fleet, now)
        fleet.order(view.bounded(self._scaler.replicas(view)), now)


def view_of(fleet: Fleet, now: float) -> FleetView:
    """The scaler's current view of the fleet."""
    config = fleet.config
    return FleetView(
        now=now,
        ordered=fleet.ordered,
        min_replicas=config.min_replicas,
        max_replicas=config.max_replicas,
        pods=tuple(_state_of(pod, fleet, now) for pod in fleet.live),
        gateway_queue=0 if fleet.gateway is None else fleet.gateway.num_held,
    )


def _state_of(pod: Pod, fleet: Fleet, now: float) -> PodState:
    return PodState(
        name=pod.name,
        draining=pod.draining,
        sample=scraped(pod, fleet.config, now) if pod.routable else None,
        kv_tokens=fleet.config.replica.kv_tokens,
        limits=pod.replica.scheduler.limits,
    )


def scraped(pod: Pod, config: FleetConfig, now: float) -> Sample:
    """Returns the pod's metrics.

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
        preemptions=float(scheduler.preemptor.num_preemptions),
        generation_tokens=float(meter.generated),
        ttft=ttft,
        tpot=tpot,
        itl=itl,
        step_tokens=step_tokens,
        waiting_prompt_tokens=pod.replica.pending_tokens,
        limits=scheduler.limits,
        capacity=config.capacity,
        revision=pod.replica.revision,
        weights_seconds=config.start_up.weights,
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

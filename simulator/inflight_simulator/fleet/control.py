"""Connects a scaler to the fleet."""

from __future__ import annotations

from inflight_cost.capacity import StepLimits
from inflight_simulator.fleet.fleet import Fleet
from inflight_simulator.fleet.pods import Pod
from inflight_simulator.fleet.scrape import scraped
from inflight_simulator.fleet.view import FleetView, PodShown, Scaler


class ScalerController:
    """A `Scaler` as the fleet's controller."""

    def __init__(self, scaler: Scaler) -> None:
        self.interval_s = scaler.interval_s
        self._scaler = scaler

    def look(self, fleet: Fleet, now: float) -> None:
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
        pods=tuple(_shown(pod, fleet, now) for pod in fleet.live),
        gateway_queue=0 if fleet.gateway is None else fleet.gateway.num_held,
    )


def _shown(pod: Pod, fleet: Fleet, now: float) -> PodShown:
    limits = pod.replica.scheduler.limits
    return PodShown(
        name=pod.name,
        draining=pod.draining,
        sample=scraped(pod, fleet.config, now) if pod.routable else None,
        kv_tokens=fleet.config.replica.kv_tokens,
        limits=StepLimits(limits.max_num_seqs, limits.max_num_batched_tokens),
    )

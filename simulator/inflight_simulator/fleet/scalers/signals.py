"""Sums over the pods' metrics that several scalers use. Draining pods report none."""

from __future__ import annotations

from inflight_operator.observe.metrics import Sample
from inflight_simulator.fleet.view import FleetView

QUEUE_DEPTH_THRESHOLD = 5.0
KV_CACHE_THRESHOLD = 0.8
"""Of llm-d's endpoint picker: with so many requests waiting, or so much of its KV cache in use, a pod is saturated."""


def samples(view: FleetView) -> list[Sample]:
    return [pod.sample for pod in view.pods if pod.sample is not None]


def waiting(view: FleetView) -> float:
    return sum(sample.waiting for sample in samples(view))


def running(view: FleetView) -> float:
    return sum(sample.running for sample in samples(view))


def in_flight(view: FleetView) -> float:
    """Requests that run, wait, or are held in front of the pods."""
    return running(view) + waiting(view) + view.gateway_queue


def saturation(view: FleetView) -> float:
    """llm-d's: mean over pods of the larger of queue and KV cache, each by its threshold; 0 without pods."""
    shares = [max(s.waiting / QUEUE_DEPTH_THRESHOLD, s.kv_usage / KV_CACHE_THRESHOLD) for s in samples(view)]
    return sum(shares) / len(shares) if shares else 0.0


def flow_control_queue(view: FleetView) -> float:
    """Requests that the flow control of llm-d's endpoint picker would hold. The simulation's router holds none, so
    requests waiting in the pods above the threshold are the substitute: with flow control they would wait in front of
    the pods."""
    return view.gateway_queue + sum(max(0.0, sample.waiting - QUEUE_DEPTH_THRESHOLD) for sample in samples(view))


def uncomputed_tokens(sample: Sample) -> float:
    """Prompt tokens of a pod that are not computed yet."""
    return float(sample.waiting_prompt_tokens or 0)

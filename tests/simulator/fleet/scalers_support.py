"""Views of a fleet, made by hand."""

from __future__ import annotations

from inflight_base.page.histogram import Histogram
from inflight_operator.observe.metrics import Sample
from inflight_settings.limits import Limits
from inflight_simulator.fleet.view import FleetView, PodState

LIMITS = Limits(256, 8192)
BOUNDS = (0.1, 0.5, 1.0, 5.0, float("inf"))


def histogram(*values: float) -> Histogram:
    return Histogram(BOUNDS, [sum(value <= bound for value in values) for bound in BOUNDS], sum(values))


def sample(time=0.0, running=0, waiting=0, kv=0.0, **more) -> Sample:
    histograms = {name: more.pop(name, histogram()) for name in ("ttft", "tpot", "itl", "step_tokens")}
    more = {"preemptions": 0.0, "generation_tokens": 0.0} | more
    return Sample(time=time, running=running, waiting=waiting, kv_usage=kv, **histograms, **more)


def pod(name, shown=None, *, draining=False, kv_tokens=100_000, limits=LIMITS) -> PodState:
    """A ready pod, or one that starts where it shows nothing."""
    return PodState(str(name), draining, None if draining else shown, kv_tokens, limits)


def view(samples, starting=0, now=0.0, bounds=(1, 100), gateway_queue=0, **pods) -> FleetView:
    """Pods that show `samples`, and some that start."""
    shown = [pod(index, each, **pods) for index, each in enumerate(samples)]
    shown += [pod(len(samples) + index, **pods) for index in range(starting)]
    return FleetView(now, len(shown), *bounds, tuple(shown), gateway_queue)


def times(scaler, until, at):
    """Orders of the scaler at each of its intervals; `at(now)` is the view."""
    found, now = [], 0.0
    while now < until:
        found.append(scaler.replicas(at(now)))
        now += scaler.interval_s
    return found

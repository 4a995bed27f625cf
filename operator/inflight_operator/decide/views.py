"""From a window of samples to what each decision takes."""

from __future__ import annotations

from collections.abc import Collection

from inflight_operator.decide.scaling import PodLoad, ScalingObservation
from inflight_operator.decide.tuning_types import TuningView
from inflight_operator.observe.window import Window


def scaling_observation(
    window: Window, ready: Collection[str], replicas: int, now: float, max_age: float
) -> ScalingObservation:
    """What the scaling decision sees.

    Args:
        ready: uids of pods that are ready and not terminating.
        replicas: ordered from the child now.
        max_age: seconds from which a sample is stale.
    """
    fresh = {uid: sample for uid, sample in window.latest(now, max_age).items() if uid in ready}
    loads = tuple(PodLoad(one.waiting, one.running, one.kv_usage, one.max_num_seqs) for one in fresh.values())
    ttft = window.since(now - window.span).histogram(lambda sample: sample.ttft).percentile(0.95)
    return ScalingObservation(now, replicas, len(ready), loads, ttft, window.span)


def tuning_view(window: Window, start: float, now: float) -> TuningView:
    """What the tuning decision sees: everything from `start` on."""
    span = window.since(start)
    tpot = span.histogram(lambda sample: sample.tpot)
    itl = span.histogram(lambda sample: sample.itl)
    generated = span.increase(lambda sample: sample.generation_tokens)
    steps = span.histogram(lambda sample: sample.step_tokens)
    return TuningView(
        time=now,
        span=span.seconds,
        pods=sum(len(samples) > 1 for samples in span.pods),
        tpot_p95=tpot.percentile(0.95),
        finished=int(tpot.count),
        itl_mean=itl.mean,
        itl_p50=itl.percentile(0.5),
        itl_p95=itl.percentile(0.95),
        ttft_p95=span.histogram(lambda sample: sample.ttft).percentile(0.95),
        generated_tokens=generated,
        tokens_per_s=generated / span.seconds if span.seconds > 0 else 0.0,
        step_tokens_p50=steps.percentile(0.5),
        step_tokens_p95=steps.percentile(0.95),
        running=span.mean_per_pod(lambda sample: sample.running) or 0.0,
        running_now=int(span.largest_now(lambda sample: sample.running)),
        waiting=span.mean_per_pod(lambda sample: sample.waiting) or 0.0,
        waiting_prompt_tokens=span.mean_per_pod(lambda sample: sample.waiting_prompt_tokens),
        kv_usage=span.peak(lambda sample: sample.kv_usage),
        preemptions_per_min=span.rate(lambda sample: sample.preemptions) * 60,
    )

"""Samples made by hand."""

from inflight_operator.observe.metrics import Sample
from tests.base.page.pages import histogram


def make_sample(time, **fields):
    """A sample of an idle engine but for `fields`."""
    idle = {name: histogram() for name in ("ttft", "tpot", "itl", "step_tokens")}
    numbers = {"running": 0, "waiting": 0, "kv_usage": 0.0, "preemptions": 0, "generation_tokens": 0}
    return Sample(time=time, **{**idle, **numbers, **fields})

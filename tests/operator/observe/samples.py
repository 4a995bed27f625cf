"""Samples made by hand."""

from inflight_operator.observe.metrics import Sample
from inflight_settings.limits import Limits
from tests.base.page.pages import histogram


def make_sample(time, **fields):
    """A sample of an idle engine but for `fields`."""
    idle = {name: histogram() for name in ("ttft", "tpot", "itl", "step_tokens")}
    numbers = {"running": 0, "waiting": 0, "kv_usage": 0.0, "preemptions": 0, "generation_tokens": 0}
    return Sample(time=time, **{**idle, **numbers, **fields})


def loaded(waiting=0, running=0, kv_usage=0.0, max_num_seqs=None, tokens=None, warmth=0.0):
    """A sample of an engine with this load; `tokens`: of its requests."""
    return Sample(
        time=0.0,
        waiting=waiting,
        running=running,
        kv_usage=kv_usage,
        limits=None if max_num_seqs is None else Limits(max_num_seqs, 2048),
        kv_tokens=None if tokens is None else 0,
        waiting_prompt_tokens=tokens,
        prefix_queries=1.0,
        prefix_hits=warmth,
    )

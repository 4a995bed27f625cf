"""Loads: draws of the given shape, sending in time, and correct reports, against a stand-in engine."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_kubectl.load.drive import Load, Result, drive
from inflight_kubectl.load.engine_side import TtftTotals, between
from inflight_kubectl.load.report import Spread, Targets, percentile, report
from inflight_kubectl.load.shape import Shape, draws
from tests.kubectl.engine import StandInEngine, serving

TARGETS = Targets(0.5, 0.05, 0.0, own=True)


def shape(**changes):
    usual = {
        "rate": None,
        "arrivals": "poisson",
        "concurrency": 4,
        "requests": 20,
        "seconds": None,
        "prompt": (8, 8),
        "output": (4, 4),
        "shared": 0.0,
        "seed": 0,
    }
    return Shape(**usual | changes)


def result(due=0.0, sent=None, ttft=0.1, tpot=0.01, tokens=10, error="", prompt=100):
    ended = due + (ttft or 0) + (tpot or 0) * tokens
    sent = due if sent is None else sent
    return Result(due, sent, ended, None if error else ttft, None if error else tpot, prompt, 0, tokens, error)


async def sent(engine, asked, stop=None):
    async with serving(engine) as forward:
        return await drive(forward, asked, {"model": "chat"}, {}, stop or asyncio.Event(), lambda load: None)


@given(
    st.tuples(st.integers(1, 30), st.integers(0, 30)),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.integers(0, 5),
)
@settings(max_examples=40, deadline=None)
def test_requests_have_the_lengths_and_the_common_beginning_that_were_asked_for(prompt, shared, seed):
    low, more = prompt
    asked = shape(prompt=(low, low + more), shared=shared, requests=12, seed=seed)
    made = list(draws(asked))
    assert made == list(draws(asked))
    assert all(low <= len(one.prompt) <= low + more for one in made)
    common = min(round(len(one.prompt) * shared) for one in made)
    assert len({tuple(one.prompt[:common]) for one in made}) == 1


def test_a_rate_is_kept_by_both_kinds_of_arrivals_and_ends_with_the_time():
    even = list(draws(shape(rate=10.0, arrivals="constant", requests=None, seconds=2.0)))
    assert [round(one.due, 6) for one in even] == [number / 10 for number in range(20)]
    random = list(draws(shape(rate=50.0, requests=None, seconds=40.0)))
    assert 1800 < len(random) < 2200
    gaps = [then.due - before.due for before, then in itertools.pairwise(random)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert 0.8 < deviation / mean < 1.2  # exponential: equal to its mean


async def test_each_client_sends_its_next_request_when_the_last_one_is_answered():
    engine = StandInEngine(wait=0.01, pace=0.001)
    load = await sent(engine, shape(requests=30, concurrency=3))
    assert (len(load.results), engine.most, load.stopped) == (30, 3, False)
    assert {one.output_tokens for one in load.results} == {4}
    assert all(one.ttft >= 0.01 for one in load.results)
    assert engine.bodies[0] | {"prompt": []} == {
        "model": "chat",
        "prompt": [],
        "max_tokens": 4,
        "min_tokens": 4,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_at_a_rate_latencies_count_from_when_a_request_was_due():
    """A single client for ten requests a second that take 0.3 s each: each waits longer than the one before."""
    asked = shape(rate=10.0, arrivals="constant", requests=4, concurrency=1, output=(1, 1))
    load = await sent(StandInEngine(wait=0.3), asked)
    waits = [one.ttft for one in load.results]
    assert waits == sorted(waits)
    assert waits[-1] > 0.8
    made = report(load, TARGETS, None)
    assert made.client.limited
    assert "all clients were waiting for answers" in made.client.said


@pytest.mark.parametrize(
    ("engine", "error"),
    [
        (StandInEngine(status=503, error="draining"), "the service answers 503: draining"),
        (StandInEngine(cut=True), "the connection ended in the middle of the answer"),
    ],
    ids=["refused", "cut"],
)
async def test_requests_that_fail_are_counted_by_what_went_wrong(engine, error):
    made = report(await sent(engine, shape(requests=3)), TARGETS, None)
    assert (made.requests, made.succeeded, made.errors) == (3, 0, {error: 3})
    assert made.attainment.both == 0.0
    assert made.ttft is None


async def test_an_early_end_keeps_what_was_answered():
    stop = asyncio.Event()
    engine = StandInEngine(pace=0.02)

    async def stop_after_some():
        while len(engine.bodies) < 12:  # noqa: ASYNC110 - of which at most four are open
            await asyncio.sleep(0.01)
        stop.set()

    load, _ = await asyncio.gather(sent(engine, shape(requests=10_000), stop), stop_after_some())
    assert load.stopped
    assert 0 < len(load.results) < 10_000


async def test_a_duration_ends_a_load_of_clients():
    load = await sent(StandInEngine(pace=0.01), shape(requests=None, seconds=0.3))
    assert 0 < len(load.results) < 60
    assert load.seconds < 2.0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60), st.sampled_from([0.5, 0.95, 0.99]))
@settings(max_examples=60, deadline=None)
def test_a_percentile_is_a_value_that_as_large_a_share_does_not_exceed(values, share):
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-9
    spread = Spread.of(values)
    assert spread.p50 <= spread.p90 <= spread.p95 <= spread.p99 <= spread.max == ordered[-1]


def test_attainment_counts_failed_requests_and_long_prompts_have_longer_targets():
    targets = Targets(0.5, 0.05, 0.001, own=True)
    load = Load(
        results=[
            result(),
            result(ttft=0.9, prompt=100),
            result(ttft=0.9, prompt=500),
            result(tpot=0.2),
            result(error="HTTP 503"),
        ],
        seconds=10.0,
    )
    kept = report(load, targets, None).attainment
    assert (kept.ttft, kept.tpot, kept.both) == (0.6, 0.6, 0.4)


def test_the_report_says_when_the_client_or_the_tunnel_was_the_limit():
    quick = Load(results=[result(ttft=0.1)], seconds=10.0, cpu=1.0, lags=[0.001])
    assert not report(quick, TARGETS, 0.095).client.limited
    assert not report(quick, TARGETS, None).client.limited
    for changes, said in (
        ({"cpu": 9.0}, "90% of a core"),
        ({"lags": [0.05]}, "50 ms late"),
    ):
        busy = Load(**{"results": quick.results, "seconds": 10.0, "cpu": 1.0, "lags": [0.001]} | changes)
        assert said in report(busy, TARGETS, None).client.said
    added = report(quick, TARGETS, 0.02).client
    assert added.added_ttft == pytest.approx(0.08)
    assert "80 ms of the mean TTFT" in added.said


def test_engines_are_compared_only_where_all_their_requests_were_ours():
    pods = frozenset({"a"})
    before = TtftTotals(pods, 10.0, 100.0)
    assert between(before, TtftTotals(pods, 12.0, 110.0), 10) == 0.2
    assert between(before, TtftTotals(pods, 12.0, 111.0), 10) is None
    assert between(before, TtftTotals(frozenset({"b"}), 12.0, 110.0), 10) is None
    assert between(None, before, 10) is None

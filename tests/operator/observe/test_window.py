"""Windows and histories: differences, restarts, bounds."""

import math
import random
import sys
from dataclasses import fields, replace
from itertools import pairwise
from struct import unpack_from

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_base.page.histogram import Histogram
from inflight_operator.observe.history import MAX_SNAPSHOTS, NEWEST, SPARSEST, History
from inflight_operator.observe.metrics import Counters
from inflight_operator.observe.window import Window
from tests.base.page.pages import BOUNDS, histogram
from tests.operator.observe.samples import make_sample


def test_what_arrived_grows_over_a_restart_of_the_engine():
    window = Window(span=100.0)
    for time, requests in ((0.0, 10), (5.0, 30), (10.0, 4), (15.0, 9)):
        counters = {"arrived": requests, "arrived_tokens": 100 * requests, "arrived_squares": 2.0**70 * requests}
        caches = {"prefix_queries": 50 * requests, "prefix_hits": 5 * requests, "prompt_tokens": 60 * requests}
        sample = make_sample(time, generation_tokens=requests, **counters, **caches)
        window = window.with_samples({"a": sample}, {"a"}, time)
    (pod,) = window.since(0.0).pods
    assert (pod.arrived, pod.arrived_tokens, pod.arrived_squares) == (29, 2900, 29 * 2.0**70)
    assert (pod.prefix_queries, pod.prefix_hits, pod.prompt_tokens) == (29 * 50, 29 * 5, 29 * 60)


def test_counters_grow_over_pods_and_restarts():
    window = Window(span=100.0)
    for time, first, second in ((0.0, 10, 100), (5.0, 30, 110), (10.0, 4, 130)):
        samples = {
            "a": make_sample(time, generation_tokens=first),
            "b": make_sample(time, generation_tokens=second),
        }
        window = window.with_samples(samples, {"a", "b"}, time)
    span = window.since(0.0)
    assert span.increase(lambda one: one.generation_tokens) == 20 + 4 + 10 + 20
    assert span.rate(lambda one: one.generation_tokens) == 5.4
    assert window.since(5.0).increase(lambda one: one.generation_tokens) == 4 + 20


def test_a_pod_that_went_or_came_back_under_its_name_starts_anew():
    window = Window().with_samples({"a": make_sample(0.0, generation_tokens=50)}, {"a"}, 0.0)
    window = window.with_samples({"b": make_sample(3.0, generation_tokens=70)}, {"b"}, 3.0)
    assert set(window.pods) == {"b"}
    assert window.since(0.0).increase(lambda one: one.generation_tokens) == 0


def test_what_is_too_old_goes():
    window = Window(span=30.0)
    window = window.with_samples({"a": make_sample(0.0), "b": make_sample(0.0)}, {"a", "b"}, 0.0)
    window = window.with_samples({"a": make_sample(20.0)}, {"a", "b"}, 20.0)
    assert set(window.pods) == {"a", "b"}
    assert window.oldest_age(20.0) == 20.0
    window = window.with_samples({}, {"a", "b"}, 40.0)
    assert set(window.pods) == {"a"}


def test_a_pod_silent_for_longer_than_the_span_starts_anew():
    history = History.of(make_sample(0.0, generation_tokens=50))
    history = history.with_sample(make_sample(5.0, generation_tokens=60), 30.0)
    history = history.with_sample(make_sample(36.0, generation_tokens=500), 30.0)
    assert history.since(0.0).generation_tokens == 0


def test_a_pod_whose_bounds_change_starts_anew():
    history = History.of(make_sample(0.0, ttft=histogram(0.1, 0.3)))
    other = Histogram((0.5, math.inf), (4.0, 5.0), 2.0)
    history = history.with_sample(make_sample(5.0, ttft=other), 30.0)
    assert history.since(0.0).ttft == Histogram()
    more = Histogram((0.5, math.inf), (5.0, 7.0), 3.0)
    assert history.with_sample(make_sample(10.0, ttft=more), 30.0).since(0.0).ttft.count == 2


def test_gauges_leave_out_the_base_sample():
    window = Window()
    for time, running in ((0.0, 60), (3.0, 10), (6.0, 20)):
        window = window.with_samples({"a": make_sample(time, running=running)}, {"a"}, time)
    span = window.since(0.0)
    assert span.mean_per_pod(lambda one: one.running) == 15
    assert span.peak(lambda one: one.running) == 20
    assert span.largest_now(lambda one: one.running) == 20
    assert span.mean_per_pod(lambda one: one.waiting_prompt_tokens) is None
    assert [pod.samples for pod in span.pods] == [3]


def test_a_pod_with_one_sample_shows_its_gauges_and_no_growth():
    window = Window().with_samples({"a": make_sample(5.0, running=7, generation_tokens=9)}, {"a"}, 5.0)
    span = window.since(0.0)
    assert (span.seconds, span.increase(lambda one: one.generation_tokens)) == (0.0, 0.0)
    assert span.rate(lambda one: one.generation_tokens) == 0.0
    assert span.mean_per_pod(lambda one: one.running) == 7
    assert [pod.samples for pod in span.pods] == [1]


def test_an_empty_window_shows_nothing():
    span = Window().since(0.0)
    assert (span.seconds, span.peak(lambda one: one.running), span.largest_now(lambda one: one.running)) == (0, 0, 0)
    assert span.mean_per_pod(lambda one: one.running) is None
    assert span.histogram(lambda one: one.ttft) == Histogram()


def test_buckets_of_a_long_running_engine_are_differenced_exactly():
    """Snapshots keep counts modulo 2**32."""
    high = 2**32 - 3
    history = History.of(make_sample(0.0, itl=Histogram(BOUNDS, [high, high, high, high, 2**40], 1.0)))
    for number in range(1, 60):
        counts = [high, high + number, high + number, high + 2 * number, 2**40 + 3 * number]
        history = history.with_sample(make_sample(number * 5.0, itl=Histogram(BOUNDS, counts, 1.0 + number)), 30.0)
    grown = history.since(59 * 5.0 - 15).itl
    assert (tuple(grown.counts), grown.total) == ((0, 3, 3, 6, 9), 3.0)


# --- against the plain definition over all samples ---


@st.composite
def scrapes(draw):
    """Samples of one pod whose process restarts now and then."""
    time, observed, tokens, samples = 0.0, [], 0, []
    for _ in range(draw(st.integers(1, 45))):
        time += draw(st.sampled_from([1.0, 3.0, 5.0, 5.0, 5.25, 11.0]))
        if draw(st.integers(0, 15)) == 0:
            observed, tokens = [], 0
        fresh = draw(st.lists(st.sampled_from([0.05, 0.125, 0.25, 0.75, 2.0]), max_size=3))
        observed, tokens = observed + fresh, tokens + draw(st.integers(0, 9))
        samples.append(
            make_sample(
                time,
                ttft=histogram(*observed),
                generation_tokens=tokens,
                running=draw(st.integers(0, 64)),
                kv_usage=draw(st.sampled_from([None, 0.0, 0.25, 0.5, 1.0])),
                waiting_prompt_tokens=draw(st.none() | st.integers(0, 100)),
            )
        )
    return samples


def restarted(was, now):
    return now.generation_tokens < was.generation_tokens or any(
        map(int.__lt__, *(map(int, one.ttft.counts) for one in (now, was)))
    )


def naive(samples):
    """Growth from the first to the last of `samples`, step by step."""
    tokens, counts, total = 0.0, [0.0] * len(BOUNDS), 0.0
    for was, now in pairwise(samples):
        anew = restarted(was, now)
        tokens += now.generation_tokens - (0 if anew else was.generation_tokens)
        total += now.ttft.total - (0 if anew else was.ttft.total)
        steps = zip(now.ttft.counts, was.ttft.counts, strict=True)
        counts = [count + after - (0 if anew else before) for count, (after, before) in zip(counts, steps, strict=True)]
    return tokens, counts, total


@given(scrapes(), st.floats(0, 200))
def test_a_span_is_what_all_samples_together_tell_from_its_base_on(samples, back):
    history = History.of(samples[0])
    for sample in samples[1:]:
        history = history.with_sample(sample, 30.0)
    newest = samples[-1]
    span = history.since(newest.time - back)
    within = [one for one in samples if one.time >= newest.time - span.seconds]
    assert span.samples == len(within)
    assert within[0].time == pytest.approx(newest.time - span.seconds)
    if len(within) > 1:
        tokens, counts, total = naive(within)
        assert span.generation_tokens == tokens
        assert list(span.ttft.counts) == counts
        assert span.ttft.total == pytest.approx(total)
    shown = within[1:] or within
    assert span.mean.running == pytest.approx(sum(one.running for one in shown) / len(shown))
    assert span.peak.running == max(one.running for one in shown)
    assert (span.peak.kv_usage or 0.0) == max(one.kv_usage or 0.0 for one in shown)
    reported = [one.waiting_prompt_tokens for one in shown if one.waiting_prompt_tokens is not None]
    assert span.mean.waiting_prompt_tokens == (pytest.approx(sum(reported) / len(reported)) if reported else None)
    assert span.peak.waiting_prompt_tokens == (max(reported) if reported else None)
    assert span.newest == newest


@st.composite
def fleets(draw):
    """Rounds of a service: for each the time, the samples that came since the last one, by pod, and the pods that are
    there. Pods come, go, restart, fall silent, change their version and are scraped more than once or not at all
    between two rounds, and the steady clock jumps where the machine slept."""
    now, counts, rounds = 0.0, {}, []
    for _ in range(draw(st.integers(1, 25))):
        now += draw(st.sampled_from([0.25, 1.0, 5.0, 5.0, 5.0, 11.0, 35.0, 4000.0]))
        alive = draw(st.sets(st.sampled_from("abc")))
        samples = {}
        for uid in sorted(alive):
            if draw(st.integers(0, 4)) == 0:
                continue
            if uid not in counts or draw(st.integers(0, 9)) == 0:
                bounds = draw(st.sampled_from([BOUNDS, (0.5, math.inf)]))
                counts[uid] = bounds, [draw(st.integers(0, 3))], {name: [] for name in HISTOGRAMS}
            bounds, tokens, seen = counts[uid]
            tokens[0] += draw(st.integers(0, 5))
            for observed in seen.values():
                observed += draw(st.lists(st.sampled_from([0.05, 0.2, 0.3, 0.75, 2.0]), max_size=2))
            samples[uid] = make_sample(
                now - draw(st.floats(0, 0.2)),
                running=draw(st.integers(0, 9)),
                waiting=draw(st.integers(0, 3)),
                kv_usage=draw(st.none() | st.floats(0, 1)),
                waiting_prompt_tokens=draw(st.none() | st.integers(0, 50)),
                preemptions=tokens[0] // 7,
                generation_tokens=tokens[0],
                arrived=tokens[0] // 3,
                **{name: of_bounds(bounds, observed) for name, observed in seen.items()},
            )
        rounds.append((now, samples, alive))
    return rounds


HISTOGRAMS = ("ttft", "tpot", "itl", "step_tokens")


def of_bounds(bounds, observed):
    counts = [float(sum(one <= bound for one in observed)) for bound in bounds]
    return Histogram(bounds, counts, float(sum(observed)))


class Samples:
    """All samples of one pod since its history began, and the growth between any two, step by step."""

    def __init__(self, samples):
        self.samples = samples

    def with_sample(self, sample, span):
        was = self.samples[-1]
        other = any(getattr(was, name).bounds != getattr(sample, name).bounds for name in HISTOGRAMS)
        return Samples([sample] if other or sample.time - was.time > span else [*self.samples, sample])

    def grown(self, seconds):
        """Returns the growth in the last `seconds`: of counters, and of histograms as counts and total."""
        newest = self.samples[-1]
        within = [one for one in self.samples if one.time >= newest.time - seconds - 1e-9]
        sums = dict.fromkeys(("preemptions", "generation_tokens", "arrived"), 0.0)
        parts = {name: ([0.0] * len(getattr(newest, name).bounds), 0.0) for name in HISTOGRAMS}
        for was, now in pairwise(within):
            anew = any(getattr(now, name) < getattr(was, name) for name in sums) or any(
                after < before
                for name in HISTOGRAMS
                for after, before in zip(getattr(now, name).counts, getattr(was, name).counts, strict=True)
            )
            for name in sums:
                sums[name] += getattr(now, name) - (0 if anew else getattr(was, name))
            for name, (counts, total) in parts.items():
                after, before = getattr(now, name), getattr(was, name)
                pairs = zip(counts, after.counts, before.counts, strict=True)
                grown = [count + one - (0 if anew else other) for count, one, other in pairs]
                parts[name] = grown, total + after.total - (0 if anew else before.total)
        return within, sums, parts


@settings(max_examples=200, deadline=None)
@given(fleets(), st.floats(0, 60), st.data())
def test_spans_are_what_all_samples_tell_whatever_pods_do(rounds, back, data):
    window, plain = Window(30.0), {}
    for now, samples, alive in rounds:
        window = window.with_samples(samples, alive, now)
        plain = {uid: one for uid, one in plain.items() if uid in alive}
        for uid, sample in samples.items():
            plain[uid] = plain[uid].with_sample(sample, 30.0) if uid in plain else Samples([sample])
        plain = {uid: one for uid, one in plain.items() if uid in samples or now - one.samples[-1].time <= 30.0}
        assert set(window.pods) == set(plain)
        span = window.since(now - back)
        for uid, pod in zip(window.pods, span.pods, strict=True):
            within, sums, parts = plain[uid].grown(pod.seconds)
            shown = within[1:] or within
            checks = {
                **{name: (lambda pod=pod, name=name: getattr(pod, name), value) for name, value in sums.items()},
                **{
                    name: (
                        lambda pod=pod, name=name: list(getattr(pod, name).counts),
                        counts if len(within) > 1 else [],
                    )
                    for name, (counts, _) in parts.items()
                },
                "samples": (lambda pod=pod: pod.samples, len(within)),
                "newest": (lambda pod=pod: pod.newest, within[-1]),
                "peak": (lambda pod=pod: pod.peak.running, max(one.running for one in shown)),
                "mean": (
                    lambda pod=pod: pod.mean.waiting,
                    pytest.approx(sum(one.waiting for one in shown) / len(shown)),
                ),
            }
            for name in data.draw(st.permutations(sorted(checks))):  # in any order, as what is read first is computed
                read, expected = checks[name]
                assert read() == expected, name
                assert read() == expected, name
            for name, (_, total) in parts.items():
                if len(within) > 1:
                    assert getattr(pod, name).total == pytest.approx(max(0.0, total))


def test_the_snapshots_that_are_kept_are_those_of_the_rule_at_any_length():
    """Number n is kept while fewer than NEWEST times the power of 2 in it, `SPARSEST` at most, are newer."""
    history = History.of(make_sample(0.0))
    for newest in range(300):
        history = history.with_sample(make_sample(5.0 * (newest + 1)), 30.0)
        numbers = [int(unpack_from("<d", snapshot)[0]) for snapshot in history.snapshots()]
        power = {number: min(number & -number or SPARSEST, SPARSEST) for number in range(newest + 1)}
        assert numbers == [one for one in range(newest + 1) if newest + 1 - one < NEWEST * power[one]]


def test_a_span_has_every_measurement_and_no_other():
    history = History.of(make_sample(0.0)).with_sample(make_sample(5.0, generation_tokens=5), 30.0)
    for span in (history.since(0.0), history.since(5.0)):
        for field in fields(Counters):
            assert isinstance(getattr(span, field.name), float | Histogram)
        with pytest.raises(AttributeError):
            span.anything  # noqa: B018


@given(st.integers(2, 400), st.sampled_from([3.0, 5.0, 10.0]), st.floats(0, 1))
def test_a_span_begins_as_early_as_promised(number, interval, share):
    """Scrapes at a steady interval: the growth begins early by less than one interval within the newest samples, else
    by at most two thirds of the requested time."""
    history = History.of(make_sample(0.0))
    for index in range(1, number):
        history = history.with_sample(make_sample(index * interval), 30.0)
    now, reach = (number - 1) * interval, (NEWEST * SPARSEST - 1 - SPARSEST) * interval
    asked = share * min(now, reach)
    early = history.since(now - asked).seconds - asked
    assert early >= -1e-9
    assert early <= (interval if asked <= (NEWEST - 1) * interval else asked * 2 / 3)


def test_frequent_scrapes_reach_back_for_the_span():
    history = History.of(make_sample(0.0))
    for index in range(1, 4000):
        history = history.with_sample(make_sample(index * 0.5), 30.0)
    assert history.since(0.0).seconds >= 30.0


def bytes_of(history):
    """Bytes of a history without its newest sample."""
    return sum(map(sys.getsizeof, (history, history.packed, history.sums, history.peaks)))


def test_a_history_of_20_000_samples_is_as_large_as_one_of_100():
    idle, sizes = make_sample(0.0), []
    history = History.of(idle)
    for index in range(1, 20_001):
        sample = replace(idle, time=index * 5.0, generation_tokens=index % 1000, running=index % 7)
        history = history.with_sample(sample, 30.0)
        assert len(history.snapshots()) <= MAX_SNAPSHOTS
        if index >= 100 and index & (index - 1) == 0:
            sizes.append(bytes_of(history))
    assert max(sizes) - min(sizes) <= 200


@pytest.mark.parametrize(("requests", "most"), [(0, 1000), (8, 2500), (200, 3000)])
def test_a_history_takes_three_kilobytes_at_most(requests, most):
    """Histograms of the size of our engine's page, 94 buckets, in which `requests` end between two scrapes."""
    edges, drawn = (*(2.0**edge for edge in range(22)), math.inf), random.Random(1)
    counts = {name: [1e6] * 23 for name in HISTOGRAMS}
    history = History.of(make_sample(0.0, **{name: Histogram(edges, one, 1e6) for name, one in counts.items()}))
    for index in range(1, 100):
        for name, buckets in counts.items():
            observed = [drawn.lognormvariate(4.0, 1.0) for _ in range(requests)]
            counts[name] = [
                count + sum(one <= edge for one in observed) for count, edge in zip(buckets, edges, strict=True)
            ]
        numbers = dict.fromkeys(
            ("generation_tokens", "prompt_tokens", "arrived_tokens"), 1e6 + 977.0 * requests * index
        )
        totals = {name: Histogram(edges, one, 1e6 + drawn.random() * requests) for name, one in counts.items()}
        history = history.with_sample(make_sample(index * 5.0, arrived=requests * index, **numbers, **totals), 30.0)
    assert len(history.snapshots()) == MAX_SNAPSHOTS
    assert bytes_of(history) <= most


def test_samples_given_in_between_do_not_change_a_window_that_was_taken():
    window = Window().with_samples({"a": make_sample(0.0)}, {"a"}, 0.0)
    later = window.with_samples({"a": replace(make_sample(5.0), generation_tokens=5)}, {"a"}, 5.0)
    assert window.pods["a"].newest.time == 0.0
    assert later.since(0.0).increase(lambda one: one.generation_tokens) == 5

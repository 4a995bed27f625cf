"""Samples: the last one of each engine, and when an engine counts as unreachable."""

from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.scrape.samples import UNREACHABLE_AFTER_SECONDS, Samples
from inflight_gateway.types import EngineSample

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


def kept(*addresses):
    samples = Samples()
    samples.keep(addresses)
    return samples


def test_an_engine_that_was_never_scraped_has_no_sample_and_counts_as_reachable():
    samples = kept(A)
    assert samples.get(A) is None
    assert samples.reachable(A)
    assert samples.reachable("10.9.9.9:1")


def test_an_engine_becomes_unreachable_after_seconds_without_an_answer_and_comes_back_at_once():
    samples, heard = kept(A), []
    samples.scraped(A, EngineSample(1.0, running=3), 1.0)
    samples.subscribe(lambda *said: heard.append(said))
    samples.failed(A, "refused", connected=False, now=2.0)
    assert samples.reachable(A)
    samples.failed(A, "refused", connected=False, now=3.0)
    assert samples.reachable(A)
    samples.failed(A, "refused", connected=False, now=2.0 + UNREACHABLE_AFTER_SECONDS)
    assert not samples.reachable(A)
    assert samples.get(A).running == 3
    assert samples.error(A) == "refused"
    assert heard == [(A, True)]
    samples.scraped(A, EngineSample(9.0), 9.0)
    assert samples.reachable(A)
    assert samples.error(A) == ""
    samples.scraped(A, EngineSample(10.0), 10.0)
    samples.scraped(A, EngineSample(11.0, draining=True), 11.0)
    assert heard[1:] == [(A, True), (A, False), (A, True)]


def test_an_engine_that_takes_connections_stays_reachable_without_metrics():
    samples = kept(A)
    for second in range(100):
        samples.failed(A, "HTTP 404", connected=True, now=float(second))
    assert samples.reachable(A)
    samples.failed(A, "refused", connected=False, now=102.5)
    assert samples.reachable(A)
    samples.failed(A, "refused", connected=False, now=104.5)
    assert not samples.reachable(A)
    samples.failed(A, "HTTP 404", connected=True, now=103.0)
    assert samples.reachable(A)


def test_an_engine_that_drains_is_the_last_choice_until_it_says_otherwise():
    samples = kept(A)
    samples.scraped(A, EngineSample(1.0, draining=True), 1.0)
    assert not samples.reachable(A)
    samples.scraped(A, EngineSample(2.0), 2.0)
    assert samples.reachable(A)


def test_results_of_an_engine_that_is_gone_are_dropped():
    samples = kept(A, B)
    samples.keep([B])
    samples.scraped(A, EngineSample(1.0), 1.0)
    samples.failed(A, "refused", connected=False, now=99.0)
    assert samples.get(A) is None
    assert samples.reachable(A)


@given(st.lists(st.tuples(st.sampled_from(["scraped", "connected", "failed"]), st.floats(0.1, 5.0))))
def test_an_engine_is_reachable_exactly_while_its_failures_are_recent(steps):
    samples, now, failing = kept(A), 0.0, None
    for result, later in steps:
        now += later
        if result == "scraped":
            samples.scraped(A, EngineSample(now), now)
        else:
            samples.failed(A, "error", connected=result == "connected", now=now)
        failing = None if result != "failed" else now if failing is None else failing
        assert samples.reachable(A) == (failing is None or now - failing < UNREACHABLE_AFTER_SECONDS)

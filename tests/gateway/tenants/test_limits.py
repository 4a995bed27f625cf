"""Limits as clients meet them: no 60 s contain more than the limit, and a client that always asks gets 99% of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_gateway.tenants.limits import SLOT_S, WINDOW_S, Account, Limit, Minute, charge_for, share
from inflight_gateway.types import RateLimits

steps = st.lists(st.tuples(st.floats(0, 20), st.integers(1, 400)), max_size=200)


def most_in_a_minute(takings):
    """The largest sum of (time, amount) in any 60 s."""
    return max((sum(n for at, n in takings if begin <= at < begin + WINDOW_S) for begin, _ in takings), default=0)


@given(steps, st.integers(1, 2000))
def test_no_minute_contains_more_tokens_than_the_limit(steps, limit):
    account, now, takings = Account(), 0.0, []
    limits = RateLimits(tokens_per_minute=limit)
    for pause, tokens in steps:
        now += pause
        tokens = charge_for(tokens, limits)
        if account.admit(limits, tokens, now).refused_by is None:
            takings.append((now, tokens))
    assert most_in_a_minute(takings) <= limit


@given(st.lists(st.floats(0, 5), max_size=300), st.integers(1, 50))
def test_no_minute_contains_more_requests_than_the_limit(pauses, limit):
    account, now, takings = Account(), 0.0, []
    for pause in pauses:
        now += pause
        if account.admit(RateLimits(requests_per_minute=limit), 1, now).refused_by is None:
            takings.append((now, 1))
    assert most_in_a_minute(takings) <= limit


@given(st.integers(1, 1200), st.floats(0.02, 0.5), st.floats(0, 1))
@settings(max_examples=20, deadline=None)
def test_a_client_that_always_asks_gets_99_percent_of_its_limit(limit, interval, begin):
    account, limits, admitted, now = Account(), RateLimits(requests_per_minute=limit), 0, begin
    minutes = 5
    while now < begin + minutes * WINDOW_S:
        for _ in range(limit + 1):
            if account.admit(limits, 1, now).refused_by is not None:
                break
            admitted += 1
        now += interval
    # The last interval of each minute may pass between two questions.
    assert admitted >= limit * (minutes - minutes * (SLOT_S + interval) / WINDOW_S)
    assert admitted <= limit * minutes


@given(steps, st.integers(1, 2000))
def test_a_request_is_admitted_after_the_time_it_was_told_and_not_before(steps, limit):
    account, now = Account(), 0.0
    limits = RateLimits(tokens_per_minute=limit)
    for pause, tokens in steps:
        now += pause
        tokens = charge_for(tokens, limits)
        verdict = account.admit(limits, tokens, now)
        if verdict.refused_by is not None:
            assert account.tokens.wait(tokens, limit, now + verdict.retry_after_s * 0.999 - 1e-6) > 0
            assert account.admit(limits, tokens, now + verdict.retry_after_s + 1e-6).refused_by is None
            return


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 300), st.integers(0, 600)), max_size=100))
def test_settled_charges_are_the_real_usage(requests):
    account, now, real = Account(), 0.0, []
    for pause, estimate, used in requests:
        now += pause
        slot = account.admit(RateLimits(), estimate, now).slot
        account.settle(estimate, used, slot, now)
        real.append((now, used))
    newest = sum(used for at, used in real if at > now - WINDOW_S)
    oldest = sum(used for at, used in real if at >= now - WINDOW_S - SLOT_S)
    account.tokens.forget(now)
    assert newest <= account.tokens.used <= oldest


def test_a_refused_request_is_charged_to_no_limit():
    account, limits = Account(), RateLimits(requests_per_minute=10, tokens_per_minute=100)
    account.admit(limits, 90, 0.0)
    verdict = account.admit(limits, 20, 1.0)
    assert verdict.refused_by is Limit.TOKENS
    assert (account.requests.used, account.tokens.used, account.in_flight) == (1, 90, 1)
    assert verdict.retry_after_s == pytest.approx(59.25)


def test_concurrent_requests_are_exact():
    account, limits = Account(), RateLimits(concurrent_requests=2)
    verdicts = [account.admit(limits, 1, 0.0) for _ in range(3)]
    assert [one.refused_by for one in verdicts] == [None, None, Limit.CONCURRENT]
    account.in_flight -= 1
    assert account.admit(limits, 1, 0.0).refused_by is None
    assert account.admit(limits, 1, 0.0, always=True).refused_by is None
    assert account.in_flight == 3


def test_a_request_above_a_minutes_limit_is_admitted_when_nothing_was_used_and_its_usage_delays_the_next():
    account, limits = Account(), RateLimits(tokens_per_minute=100)
    charge = charge_for(5000, limits)
    verdict = account.admit(limits, charge, 0.0)
    assert verdict.refused_by is None
    account.settle(charge, 5000, verdict.slot, 30.0)
    assert account.admit(limits, 1, 61.0).refused_by is Limit.TOKENS
    assert account.admit(limits, 1, 91.0).refused_by is None


def test_times_from_a_moment_ago_keep_slots_in_order():
    minute = Minute()
    minute.add(1, 10.0)
    minute.add(1, 9.0)
    minute.forget(70.3)
    assert minute.used == 0


def test_a_bucket_holds_at_most_one_number_for_each_slot_of_a_minute():
    minute = Minute()
    for step in range(100_000):
        minute.add(1, step * 0.01)
    assert len(minute._slots) <= 242


def test_a_share_is_at_least_one():
    assert share(RateLimits(1, 100, None), 3) == RateLimits(1, 33, None)

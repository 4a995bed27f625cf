from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.relay.budget import BudgetLimits, RetryBudget
from inflight_gateway.relay.decide import ENGINES_DIED, Again, Failure, Limits, Tried, next_step
from inflight_gateway.relay.http.errors import ClientError

LIMITS = Limits()
WAITED_FOR = (Failure.BUSY, Failure.UNREACHABLE)


@given(
    failure=st.sampled_from([each for each in Failure if each not in (*WAITED_FOR, Failure.EXCESS)]),
    failures=st.integers(1, 9),
)
def test_a_failed_attempt_is_followed_by_another_at_once_up_to_the_bound(failure, failures):
    step = next_step(failure, Tried(failures), LIMITS)
    if failures < LIMITS.max_attempts:
        assert step == Again()
    else:
        assert isinstance(step, ClientError)
        assert step.status in (502, 503, 504)


@given(failure=st.sampled_from(WAITED_FOR), retry_after=st.none() | st.floats(0, 1e6), waited=st.floats(0, 100))
def test_busy_or_unreachable_replicas_are_waited_for_within_bounds(failure, retry_after, waited):
    step = next_step(failure, Tried(1, waited), LIMITS, retry_after_s=retry_after)
    if isinstance(step, Again):
        assert LIMITS.min_pause_s <= step.after_s <= LIMITS.max_pause_s
        assert waited + step.after_s <= LIMITS.max_wait_s
    else:
        assert waited + LIMITS.max_pause_s > LIMITS.max_wait_s
        assert step.status == 503
        assert (b"retry-after", b"5") in step.headers


@given(failure=st.sampled_from(list(Failure)), failures=st.integers(2, 9), most=st.integers(3, 20))
def test_a_request_that_two_engines_died_with_is_not_tried_again_whatever_the_service_allows(failure, failures, most):
    limits = Limits(max_attempts=most)
    if failure in (*WAITED_FOR, Failure.EXCESS):
        return
    assert next_step(failure, Tried(failures, deaths=2), limits, said=ClientError(503, "died")) is ENGINES_DIED
    assert next_step(failure, Tried(2, deaths=1), limits) == Again()


def test_busy_replicas_do_not_use_up_attempts():
    assert next_step(Failure.BUSY, Tried(99), LIMITS) == Again(1.0)


@given(failure=st.sampled_from(list(Failure)))
def test_without_continuation_a_failure_ends_an_answer_that_has_tokens(failure):
    said = ClientError(503, "died")
    assert isinstance(next_step(failure, Tried(1), LIMITS, continues=False), ClientError)
    if failure is not Failure.EXCESS:
        assert next_step(failure, Tried(1), LIMITS, continues=False, said=said) is said


def test_an_answer_that_the_gateway_has_no_memory_for_is_not_tried_again():
    step = next_step(Failure.EXCESS, Tried(1), LIMITS, said=ClientError(503, "died"))
    assert (step.status, step.code) == (502, "engine_lost")


def test_the_last_error_of_an_engine_reaches_the_client():
    said = ClientError(503, "died", "engine")
    assert next_step(Failure.ENGINE, Tried(3), LIMITS, said=said) is said
    assert next_step(Failure.ENGINE, Tried(2), LIMITS, said=said) == Again()


@given(
    steps=st.lists(st.tuples(st.booleans(), st.floats(0, 2)), max_size=200),
    ratio=st.floats(0, 1),
    per_s=st.floats(0, 20),
    burst=st.floats(1, 50),
)
def test_retries_stay_within_their_share_of_requests(steps, ratio, per_s, burst):
    now = 0.0
    budget, requests, retries = RetryBudget(BudgetLimits(ratio, per_s, burst), now), 0, 0
    for is_request, pause in steps:
        now += pause
        if is_request:
            requests += 1
            budget.request()
        else:
            retries += budget.retry(now)
        assert retries <= burst + ratio * requests + per_s * now + 1e-6


def test_a_replica_that_dies_with_all_its_requests_is_within_the_budget():
    budget = RetryBudget(BudgetLimits(), 0.0)
    assert all(budget.retry(0.0) for _ in range(500))
    assert not budget.retry(0.0)
    assert budget.retry(0.2)

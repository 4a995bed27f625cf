"""Histories of scaling are bounded by construction, and entries that they leave out change no decision."""

from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_operator.decide.replicas.behavior import (
    EVENTS_PER_PERIOD,
    Behavior,
    ScalingHistory,
    ScalingPolicy,
    ScalingRules,
    recorded,
    stabilized,
)
from inflight_operator.decide.replicas.scaling import ScalingBounds, ScalingObservation, ScalingTargets, decide_scaling
from tests.operator.observe.samples import loaded

ROUNDS = 20_000
"""Number of rounds of 3 s each: entries that are kept for an hour, the longest time, are dropped 16 times over."""
TARGETS = ScalingTargets(waiting_requests=4)
POLICIES = (ScalingPolicy("Pods", 4, 1800.0), ScalingPolicy("Percent", 100, 15.0))
LONG = Behavior(ScalingRules(3600.0, POLICIES), ScalingRules(3600.0, POLICIES))


def sizes(history):
    return len(history.lowest), len(history.highest), len(history.events)


@given(st.integers(0, 40), st.integers(1, 12), st.integers(0, 2**32 - 1))
@settings(max_examples=1, deadline=None)
def test_20_000_rounds_leave_a_history_no_larger_than_a_few_hundred(outside, most, seed):
    """Replicas in and out of the bounds in every round, as External with a number outside of them has it. A history
    that grew would also make each round slower."""
    history, largest, state = ScalingHistory(), (0, 0, 0), seed
    for step in range(ROUNDS):
        state = (state * 1103515245 + 12345) % 2**31
        replicas = outside if step % 3 == 0 else 1 + state % most
        ready = min(replicas, 3)
        loads = (loaded(state % 50, 4, 0.2, 8),) * ready
        observation = ScalingObservation(step * 3.0, replicas, ready, loads)
        history = decide_scaling(observation, TARGETS, LONG, ScalingBounds(1, most), history).history
        largest = tuple(map(max, largest, sizes(history)))
    assert largest[0] <= most + 1
    assert largest[1] <= most + 1
    assert largest[2] <= 2 * EVENTS_PER_PERIOD + 2


windows = st.sampled_from([0.0, 10.0, 60.0])


@given(
    st.lists(st.tuples(st.floats(0.1, 20), st.integers(1, 9)), min_size=1, max_size=60),
    windows,
    windows,
    st.integers(1, 9),
)
def test_a_window_holds_as_if_every_recommendation_had_been_kept(course, up, down, current):
    behavior = Behavior(ScalingRules(up), ScalingRules(down))
    history, everything, now = ScalingHistory().at(0.0, current, starting=0), [(0.0, current)], 0.0
    for pause, wanted in course:
        now += pause
        lows = [one for time, one in everything if now - time < up]
        highs = [one for time, one in everything if now - time < down]
        most, least = min([wanted, *lows]), max([wanted, *highs])
        expected = most if current < most else least if current > least else current
        assert stabilized(wanted, current, behavior, history, now).replicas == expected
        history = recorded(history, now, wanted=wanted, before=current, after=expected, behavior=behavior)
        everything.append((now, wanted))
        current = expected

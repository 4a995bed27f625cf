"""autoscaling/v2: arithmetic of the metrics, windows and policies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_operator.decide.replicas.behavior import Behavior, ScalingPolicy, ScalingRules
from inflight_simulator.fleet.scalers.hpa import (
    DEFAULT_BEHAVIOR,
    Hpa,
    by_totals,
    hpa_concurrency,
    hpa_kv,
    hpa_queue,
    replicas_by_pods_metric,
    replicas_by_total,
    windows,
)
from tests.simulator.fleet.scalers_support import pod, sample, view


def hpa_on(total, *behavior):
    return Hpa(by_totals((lambda seen: total, 5.0)), *behavior)


def waiting(*counts):
    return [sample(waiting=count) for count in counts]


@pytest.mark.parametrize(
    ("values", "missing", "current", "wanted"),
    [
        ([10, 10], 0, 2, 4),
        ([5.4, 5.4], 0, 2, 2),  # 1.08 is within the tolerance of 0.1
        ([5.6, 5.6], 0, 2, 3),
        ([1, 1, 1, 1], 0, 4, 1),
        ([], 3, 3, None),
        ([20], 1, 2, 4),  # the one that starts counts as 0: 20 / 2 / 5 = 2 of 2 pods
        ([12], 2, 3, 3),  # 12 / 3 / 5 = 0.8 is the other direction: nothing changes
        ([10], 1, 2, 2),  # and 1.0 is within the tolerance
        ([0, 0], 2, 4, 2),  # on the way down it counts as at target: 10 / 4 / 5 = 0.5 of 4 pods
        ([4, 4], 8, 10, 10),  # (8 + 40) / 10 / 5 = 0.96
    ],
)
def test_a_pods_metric_counts_pods_without_it_as_nothing_or_as_at_target(values, missing, current, wanted):
    assert replicas_by_pods_metric(values, missing, 5.0, current) == wanted


def test_a_change_against_its_own_ratio_is_none():
    """Three replicas are ordered and five pods are there: more than three, but the ratio asks for fewer."""
    assert replicas_by_pods_metric([4.0] * 5, 0, 5.0, 3) == 4
    assert replicas_by_pods_metric([4.0] * 4, 1, 5.0, 3) == 3


@given(
    values=st.lists(st.floats(0, 50), min_size=1, max_size=8),
    missing=st.integers(0, 8),
    target=st.floats(0.5, 20),
)
def test_pods_without_the_metric_never_make_a_change_larger(values, missing, target):
    current = len(values) + missing
    alone = replicas_by_pods_metric(values, 0, target, len(values))
    found = replicas_by_pods_metric(values, missing, target, current)
    if found > current:
        assert found <= alone
    if found < current:
        assert found >= alone


@pytest.mark.parametrize(
    ("total", "current", "wanted"), [(100, 1, 20), (100, 18, 20), (100, 19, 19), (100, 22, 22), (0, 3, 0)]
)
def test_a_total_is_divided_by_the_target_outside_of_the_tolerance(total, current, wanted):
    assert replicas_by_total(total, 5.0, current) == wanted


def test_a_number_of_replicas_with_a_target_of_1_loses_single_steps_from_10_on():
    """kedacore/keda#5263: from 10 replicas on, one more lies within the tolerance."""
    assert replicas_by_total(10, 1.0, 9) == 10
    assert replicas_by_total(11, 1.0, 10) == 10
    assert replicas_by_total(12, 1.0, 10) == 12


def test_up_at_once_by_the_larger_of_twice_and_four_more_in_15_seconds():
    hpa = hpa_on(500)
    assert hpa.replicas(view(waiting(500))) == 5
    assert hpa.replicas(view(waiting(500), starting=4, now=10.0)) == 5
    assert hpa.replicas(view(waiting(500), starting=4, now=15.0)) == 10
    assert hpa.replicas(view(waiting(500), starting=9, now=30.0)) == 20


def test_down_after_300_seconds_to_the_largest_recommendation_of_them():
    hpa = Hpa(by_totals((lambda seen: 6 if seen.now == 150 else 2, 1.0)))
    for now in range(0, 300, 15):
        assert hpa.replicas(view(waiting(0) * 8, now=float(now))) == 8
    assert hpa.replicas(view(waiting(0) * 8, now=300.0)) == 6
    assert hpa.replicas(view(waiting(0) * 6, now=450.0)) == 2


def test_an_up_window_waits_for_the_smallest_recommendation():
    hpa = hpa_on(50, windows(60.0, 300.0))
    found = [hpa.replicas(view(waiting(50), now=15.0 * step)) for step in range(5)]
    assert found == [1, 1, 1, 1, 5]


def test_a_policy_of_one_pod_in_180_seconds():
    one = ScalingRules(0.0, (ScalingPolicy("Pods", 1, 180.0),))
    hpa = hpa_on(50, Behavior(one, DEFAULT_BEHAVIOR.scale_down))
    assert hpa.replicas(view(waiting(50), now=0.0)) == 2
    assert hpa.replicas(view(waiting(50), starting=1, now=165.0)) == 2
    assert hpa.replicas(view(waiting(50), starting=1, now=180.0)) == 3


def test_bounds_hold():
    hpa = hpa_on(500)
    assert hpa.replicas(view(waiting(500), bounds=(1, 3))) == 3


def test_a_queue_target_repeats_its_order_while_pods_start():
    """The queue that ordered them grows until they are ready, so that ever more are ordered."""
    scaler, ordered, found = hpa_queue(5.0), 1, []
    for step in range(4):
        seen = view([sample(waiting=20 + 20 * step)], starting=ordered - 1, now=15.0 * step)
        ordered = scaler.replicas(seen)
        found.append(ordered)
    assert found == [4, 8, 12, 16]


def test_draining_pods_are_ignored():
    shown = (*view(waiting(10)).pods, pod("old", draining=True))
    seen = view(waiting(10))
    seen = type(seen)(0.0, 1, 1, 100, shown)
    assert hpa_queue(5.0).replicas(seen) == 2


def test_targets_of_kv_cache_and_concurrency():
    pods = [sample(running=20, waiting=12, kv=0.9), sample(running=20, waiting=12, kv=0.9)]
    assert hpa_kv(0.6).replicas(view(pods)) == 3
    assert hpa_concurrency(16.0).replicas(view(pods)) == 4


def test_nothing_is_changed_before_a_pod_shows_metrics():
    assert hpa_queue(5.0).replicas(view([], starting=3)) == 3

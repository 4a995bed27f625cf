"""Rollouts where every accelerator is in use."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operator.rollouts.cluster import Cluster
from tests.operator.rollouts.test_waves import until_done


def full(replicas, **rollout):
    cluster = Cluster(replicas, rollout, accelerators=replicas, start_up=60.0)
    cluster.roll_out()
    return cluster


def test_without_leave_to_release_every_old_pod_serves_until_there_is_room():
    cluster = full(20)
    for _ in range(3600):
        cluster.tick()
    assert (cluster.ready, cluster.lowest, cluster.released) == (20, 20, False)
    cluster.accelerators += 2
    until_done(cluster, 3600.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.sampled_from([None, 0, 1, 3, "25%"]))
def test_with_leave_the_rollout_releases_after_that_time_and_ends(replicas, unavailable):
    more = {} if unavailable is None else {"maxUnavailable": unavailable}
    cluster = full(replicas, releaseAfter="2m", **more)
    if unavailable in (None, 0):
        for _ in range(119):
            cluster.tick()
        assert cluster.lowest == replicas
    until_done(cluster, replicas * 90.0 + 200.0)
    assert cluster.lowest >= replicas - max(1, replicas * 25 // 100, 3 if unavailable == 3 else 0)
    cluster.tick()
    assert not cluster.released


def test_a_rollout_that_releases_does_so_to_its_end_and_waits_once():
    until_done(full(40, releaseAfter="10m"), 600.0 + 10 * 90.0)


def test_a_rollout_that_moves_through_a_few_free_accelerators_does_not_release():
    cluster = Cluster(20, {"maxSurge": "50%", "releaseAfter": "2m"}, accelerators=22, start_up=60.0, drain=5.0)
    cluster.roll_out()
    until_done(cluster, 3600.0)
    assert cluster.lowest == 20


def test_pods_that_no_node_would_take_do_not_release_those_that_serve():
    cluster = full(4, releaseAfter="2m")
    cluster.no_node = True
    for _ in range(600):
        cluster.tick()
    assert (cluster.ready, cluster.released) == (4, False)


@pytest.mark.parametrize("more", [{}, {"strategy": "ReleaseFirst"}])
def test_the_next_rollout_starts_as_the_strategy_says(more):
    cluster = full(5, **(more or {"releaseAfter": "1m"}))
    until_done(cluster, 3600.0)
    cluster.tick()
    cluster.accelerators += 5
    cluster.roll_out()
    until_done(cluster, 3600.0)
    assert cluster.lowest == (4 if more else 5)


def test_a_queue_without_quota_for_additional_pods_is_no_room_either():
    cluster = full(3, releaseAfter="1m")
    cluster.gates = ("kueue.x-k8s.io/admission",)
    until_done(cluster, 3600.0)
    assert cluster.lowest == 2

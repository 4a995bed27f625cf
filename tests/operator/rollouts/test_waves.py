"""Rollouts in waves: as many pods at a time as the bounds allow, never more, and to the end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operator.rollouts.cluster import Cluster

some = settings(max_examples=40, deadline=None)


def until_done(cluster, seconds):
    begun = cluster.now
    while not cluster.done:
        assert cluster.now - begun < seconds, "the rollout does not end"
        cluster.tick()
    return cluster.now - begun


@pytest.mark.parametrize("rollout", [{}, {"strategy": "ReleaseFirst"}, {"maxSurge": "10%", "maxUnavailable": "10%"}])
def test_300_pods_are_replaced_in_ten_waves_of_start_up(rollout):
    cluster = Cluster(300, rollout, start_up=60.0)
    cluster.roll_out()
    assert until_done(cluster, 10 * 60.0 + 10.0) > 60.0
    assert (cluster.lowest, cluster.highest) == (300 - cluster.bounds[1], 300 + cluster.bounds[0])


@pytest.mark.parametrize(
    ("rollout", "waves"),
    [
        ({"maxSurge": 1}, 12),
        ({"maxSurge": 4}, 3),
        ({"maxSurge": "50%"}, 2),
        ({"maxSurge": "100%"}, 1),
        ({"strategy": "ReleaseFirst", "maxUnavailable": "25%"}, 4),
        ({"strategy": "ReleaseFirst", "maxUnavailable": 1, "maxSurge": 3}, 3),
        ({}, 6),
    ],
)
def test_the_bounds_set_the_number_of_waves(rollout, waves):
    cluster = Cluster(12, rollout, start_up=100.0)
    cluster.roll_out()
    assert round(until_done(cluster, 2000.0) / 100.0) == waves


shares = st.one_of(st.integers(1, 6), st.sampled_from(["1%", "10%", "25%", "50%", "100%"]))
rollouts = st.one_of(
    st.fixed_dictionaries(
        {}, optional={"maxSurge": shares, "maxUnavailable": shares | st.just(0), "releaseAfter": st.just("30s")}
    ),
    st.fixed_dictionaries(
        {"strategy": st.just("ReleaseFirst")}, optional={"maxUnavailable": shares, "maxSurge": shares | st.just("0%")}
    ),
)
events = st.tuples(st.sampled_from(["", "vanish", "fail", "hang", "slow", "order"]), st.integers(0, 40))


@some
@given(rollouts, st.integers(1, 14), st.lists(events, max_size=25), st.integers(0, 6))
def test_whatever_happens_the_controllers_keep_the_bounds_and_the_rollout_ends(rollout, replicas, course, room):
    """The bounds are of what the rollout itself removes: pods that vanish or fail are missing besides, and so are those
    that a lower number of replicas removes. The cluster has at least one accelerator more than replicas ever."""
    cluster = Cluster(replicas, rollout, accelerators=16 + room, start_up=20.0, drain=5.0)
    cluster.roll_out()
    for event, number in course:
        alive = cluster.alive
        pod = alive[number % len(alive)] if alive else None
        cluster.start_up = {"slow": 90.0, "hang": 300.0}.get(event, 20.0)
        if event == "vanish" and pod:
            pod.leaves_at = cluster.now
        elif event == "fail" and pod:
            pod.unready_until = cluster.now + 40.0
        elif event == "order":
            cluster.replicas = 1 + number % 15
        for _ in range(7):
            before, orders = cluster.ready, cluster.replicas == cluster.scaled_to
            cluster.tick()
            surge, unavailable = cluster.bounds
            if orders:
                assert cluster.ready >= min(before, cluster.replicas - unavailable)
            assert len(cluster.alive) <= max(cluster.replicas + surge, len(alive))
            alive = cluster.alive
    cluster.start_up = 20.0
    until_done(cluster, 10_000.0)

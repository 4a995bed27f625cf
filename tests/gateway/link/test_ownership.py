"""Owners of services among gateway pods."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.link.ownership import LARGE_ENGINES, Owners

PODS = [f"gw-{number}" for number in range(6)]


def key(number: int) -> ServiceKey:
    return ServiceKey(f"team-{number % 3}", f"chat-{number}")


fleets = st.lists(st.one_of(st.integers(0, 20), st.integers(0, 2000)), min_size=1, max_size=40).map(
    lambda counts: {key(number): count for number, count in enumerate(counts)}
)
small = st.lists(st.integers(0, LARGE_ENGINES - 1), min_size=1, max_size=60).map(
    lambda counts: {key(number): count for number, count in enumerate(counts)}
)
pods_of = st.lists(st.sampled_from(PODS), min_size=1, unique=True)


def owners_of(engines, pods, without=()):
    owners = Owners(engines, pods)
    return {service: owners.owner(service, without) for service in engines}


@given(fleets, pods_of, st.randoms(use_true_random=False))
def test_owners_do_not_depend_on_the_order_of_services_and_pods(engines, pods, order):
    services, names = list(engines.items()), list(pods)
    order.shuffle(services)
    order.shuffle(names)
    assert Owners(engines, pods) == Owners(dict(services), names)
    assert owners_of(engines, pods) == owners_of(dict(services), names)


@given(fleets, pods_of, st.sets(st.sampled_from(PODS)))
def test_a_pod_that_does_not_count_is_as_one_that_is_not_there(engines, pods, without):
    left = [pod for pod in pods if pod not in without]
    assert owners_of(engines, pods, tuple(without)) == owners_of(engines, left)
    assert set(owners_of(engines, left).values()) <= (set(left) or {None})


@given(small, pods_of)
def test_a_pod_that_goes_moves_only_its_own_small_services(engines, pods):
    before, after = owners_of(engines, pods), owners_of(engines, pods[1:])
    assert all(after[service] == owner for service, owner in before.items() if owner != pods[0])


@given(fleets, pods_of, st.integers(2, 40))
def test_large_services_are_spread(engines, pods, count):
    engines = dict.fromkeys(map(key, range(100, 100 + count)), 2000) | engines
    held = Counter(dict.fromkeys(pods, 0))
    held.update(owner for service, owner in owners_of(engines, pods).items() if engines[service] >= 1024)
    # No pod has two where another has none.
    assert max(held.values()) < 2 or min(held.values()) > 0


def test_the_largest_service_does_not_sit_beside_others_that_are_large():
    engines = {key(0): 1000, **dict.fromkeys(map(key, range(1, 4)), 100)}
    owners = owners_of(engines, PODS[:2])
    assert all(owners[key(number)] != owners[key(0)] for number in range(1, 4))


@given(fleets, pods_of, st.data())
def test_a_service_that_scales_within_its_size_moves_none(engines, pods, data):
    service = data.draw(st.sampled_from(sorted(engines)))
    sizes = [0, *(4**step for step in range(7))]
    now = data.draw(st.integers(1, 2000))
    floor = max(size for size in sizes if size <= now)
    later = data.draw(st.integers(floor, 4 * floor - 1))
    assert Owners(engines | {service: now}, pods) == Owners(engines | {service: later}, pods)


@given(small, pods_of, st.data())
def test_small_services_scale_without_a_move(engines, pods, data):
    service = data.draw(st.sampled_from(sorted(engines)))
    scaled = engines | {service: data.draw(st.integers(0, LARGE_ENGINES - 1))}
    assert owners_of(engines, pods) == owners_of(scaled, pods)


@given(fleets, pods_of, fleets, pods_of)
def test_equal_owners_agree_on_every_service(engines, pods, others, other_pods):
    assert Owners(engines, pods) == Owners(engines, pods)
    if Owners(engines, pods) == Owners(others, other_pods):
        services = {**engines, **others}
        one, other = Owners(engines, pods), Owners(others, other_pods)
        assert all(one.owner(service) == other.owner(service) for service in services)


@pytest.mark.parametrize("pods", [2, 3, 5])
def test_small_services_are_spread_evenly(pods):
    owners = owners_of(dict.fromkeys(map(key, range(3000)), 1), PODS[:pods])
    held = Counter(owners.values())
    assert min(held.values()) > 0.9 * 3000 / pods


def test_without_any_pod_there_is_no_owner():
    assert Owners({key(0): 1}, []).owner(key(0)) is None
    assert Owners({key(0): 1}, ["gw-0"]).owner(key(0), ("gw-0",)) is None


def test_five_thousand_services_cost_milliseconds():
    counts = random.Random(1)
    engines = {key(number): counts.choice([1, 1, 1, 2, 4, 50]) for number in range(5000)}
    owners_of(engines, PODS)
    begun = time.process_time()
    owners = Owners(engines, PODS)
    for service in engines:
        owners.owner(service)
        owners.owner(service, ("gw-1",))
    assert time.process_time() - begun < 0.5

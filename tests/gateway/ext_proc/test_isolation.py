"""A tenant with a modest load beside one that floods, on engines where requests that run side by side hardly slow each
other down: the delays that remain are those of the gateway's decisions."""

from __future__ import annotations

import pytest

from tests.gateway.ext_proc.emulated_fleet import COST, poisson, simulated

SECONDS, LEARNING_S = 120.0, 20.0
SEEDS = range(2)


def beside(slots, replicas, steady_per_s, flood_per_s, seeds=SEEDS):
    """The steady tenant's requests by seed and name, and the tokens of the other a second."""
    requests, tokens = {}, 0
    for seed in seeds:
        arrivals = [*poisson("steady", steady_per_s, SECONDS, seed), *poisson("flood", flood_per_s, SECONDS, seed)]
        for each in simulated(arrivals, until=SECONDS + 10, slots=slots, replicas=replicas):
            if each.tenant == "steady" and each.at >= LEARNING_S:
                requests[seed, each.name] = each
            if each.tenant == "flood" and each.ended < SECONDS:
                tokens += each.tokens
    return requests, tokens / SECONDS / len(seeds)


def quantile(values, share):
    ordered = sorted(values)
    return ordered[int(share * (len(ordered) - 1))]


def latency(each):
    return each.ended - each.at


def ttft(each):
    return each.first - each.at


@pytest.mark.parametrize(("slots", "replicas", "steady_per_s", "flood_per_s"), [(8, 1, 1.0, 20.0), (8, 2, 2.0, 40.0)])
def test_beside_a_flood_of_twenty_times_its_load_a_tenants_latency_is_within_a_tenth_of_alone(
    slots, replicas, steady_per_s, flood_per_s
):
    """At the median and at p95. Its TTFT grows by up to the step that runs when it arrives. The flood keeps three
    quarters of the throughput that it has alone."""
    alone, _ = beside(slots, replicas, steady_per_s, 0.0)
    both, flood = beside(slots, replicas, steady_per_s, flood_per_s)
    _, flood_alone = beside(slots, replicas, 0.0, flood_per_s, seeds=[0])
    assert alone.keys() == both.keys()
    for share in (0.5, 0.95):
        ratio = quantile(map(latency, both.values()), share) / quantile(map(latency, alone.values()), share)
        assert ratio <= 1.1
        added = quantile(map(ttft, both.values()), share) - quantile(map(ttft, alone.values()), share)
        assert added <= 1.5 * COST.base_s
    steady = steady_per_s * 24
    assert flood + steady >= 0.74 * flood_alone

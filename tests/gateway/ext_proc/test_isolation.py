"""A tenant with a modest load beside one that floods, on engines where requests that run side by side hardly slow each
other down: the delays that remain are those of the gateway's decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.gateway.ext_proc.emulated_fleet import COST, Shape, poisson, simulated

SECONDS, LEARNING_S = 120.0, 20.0
SEEDS = range(2)
SHORT = 64, 24
"""Tokens of prompt and answer."""


def beside(shape, steady_per_s, flood_per_s, lengths, seeds=SEEDS):
    """The steady tenant's requests by seed and name, and the tokens of the other a second."""
    requests, tokens = {}, 0
    steady, flood = lengths
    for seed in seeds:
        arrivals = poisson("steady", steady_per_s, SECONDS, seed, prompt=steady[0], output=steady[1])
        arrivals += poisson("flood", flood_per_s, SECONDS, seed, prompt=flood[0], output=flood[1])
        for each in simulated(arrivals, shape, until=SECONDS + 10):
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


@pytest.mark.parametrize(
    ("shape", "steady_per_s", "lengths"),
    [
        pytest.param(Shape(slots=8), 1.0, (SHORT, SHORT), id="few slots"),
        pytest.param(Shape(slots=8, replicas=2), 2.0, (SHORT, SHORT), id="two replicas"),
        pytest.param(
            Shape(slots=64, kv_tokens=12_000, cost=replace(COST, prefill_token_s=10e-6)),
            1.5,
            ((256, 64), (512, 128)),
            id="small KV cache",
        ),
    ],
)
def test_beside_a_flood_of_twenty_times_its_load_a_tenants_latency_is_within_a_tenth_of_alone(
    shape, steady_per_s, lengths
):
    """At the median and at p95. Its TTFT grows by up to the step that runs when it arrives. The two together have three
    quarters and more of the output that the flood has alone."""
    alone, _ = beside(shape, steady_per_s, 0.0, lengths)
    both, flood = beside(shape, steady_per_s, 20 * steady_per_s, lengths)
    _, flood_alone = beside(shape, 0.0, 20 * steady_per_s, lengths, seeds=[0])
    assert alone.keys() == both.keys()
    for share in (0.5, 0.95):
        ratio = quantile(map(latency, both.values()), share) / quantile(map(latency, alone.values()), share)
        assert ratio <= 1.1
        added = quantile(map(ttft, both.values()), share) - quantile(map(ttft, alone.values()), share)
        assert added <= 1.5 * COST.base_s
    assert flood + steady_per_s * lengths[0][1] >= 0.74 * flood_alone

"""A tenant with a modest load beside one that floods, on engines where requests that run side by side hardly slow each
other down: the delays that remain are those of the gateway's decisions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from inflight_cost.model import StepWork
from tests.gateway.virtual.engine import COST, Shape
from tests.gateway.virtual.fleet import poisson, simulated

SHORT = 64, 24
"""Tokens of prompt and answer."""


@dataclass(frozen=True)
class Case:
    """Two tenants.

    Attributes:
        steady_per_s, flood_per_s: requests. steady, flood: tokens of their prompts and answers.
        longest: of the flood's answers, which then have exponential lengths.
        seconds: of each run. learning_s: of these, the first ones do not count.
        runs: with other arrivals.
    """

    shape: Shape
    steady_per_s: float
    flood_per_s: float
    steady: tuple[int, int] = SHORT
    flood: tuple[int, int] = SHORT
    longest: int | None = None
    seconds: float = 120.0
    learning_s: float = 20.0
    runs: int = 2


def beside(case):
    """The steady tenant's requests by run and name, and the tokens of the other a second."""
    requests, tokens = {}, 0
    for seed in range(case.runs):
        (prompt, output), (flood_prompt, flood_output) = case.steady, case.flood
        arrivals = poisson("steady", case.steady_per_s, case.seconds, seed, prompt=prompt, output=output)
        arrivals += poisson(
            "flood",
            case.flood_per_s,
            case.seconds,
            seed,
            prompt=flood_prompt,
            output=flood_output,
            longest=case.longest,
        )
        for each in simulated(arrivals, case.shape, until=case.seconds + 10):
            if each.tenant == "steady" and each.at >= case.learning_s:
                requests[seed, each.name] = each
            if each.tenant == "flood" and case.learning_s <= each.ended < case.seconds:
                tokens += each.tokens
    return requests, tokens / (case.seconds - case.learning_s) / case.runs


def quantile(values, share):
    ordered = sorted(values)
    return ordered[int(share * (len(ordered) - 1))]


def latency(each):
    return each.ended - each.at


def ttft(each):
    return each.first - each.at


LONG = {"flood": (64, 2000), "seconds": 400.0, "learning_s": 120.0, "runs": 1}
"""The first answer takes a minute, and tells how long the next ones will be."""


def test_a_flood_whose_answers_are_long_delays_others_by_seconds_before_any_of_them_has_ended():
    """The KV cache is full then: the engine preempts the tenant that fills it, and lets others pass."""
    case = Case(Shape(slots=64, kv_tokens=12_000), 1.5, 1.3, flood=LONG["flood"], learning_s=0.0)
    alone, _ = beside(replace(case, flood_per_s=0.0))
    both, _ = beside(case)
    assert alone.keys() == both.keys()
    assert quantile(map(latency, both.values()), 0.5) <= 1.1 * quantile(map(latency, alone.values()), 0.5)
    assert max(map(latency, both.values())) <= 5.0


@pytest.mark.parametrize(
    ("case", "most_lost"),
    [
        pytest.param(Case(Shape(slots=8), 1.0, 20.0), 0.26, id="few slots"),
        pytest.param(Case(Shape(slots=8, replicas=2), 2.0, 40.0), 0.26, id="two replicas"),
        pytest.param(
            Case(
                Shape(slots=64, kv_tokens=12_000, cost=replace(COST, prefill_token_s=10e-6)),
                1.5,
                30.0,
                (256, 64),
                (512, 128),
            ),
            0.26,
            id="small KV cache",
        ),
        pytest.param(
            Case(Shape(slots=64, kv_tokens=12_000), 1.5, 1.3, **LONG),
            0.36,
            id="long answers that fill the KV cache",
        ),
        pytest.param(
            Case(Shape(slots=64, kv_tokens=48_000), 1.5, 2.0, longest=5000, **LONG),
            0.4,
            id="long answers of unknown lengths",
        ),
    ],
)
def test_beside_a_flood_of_twenty_times_its_load_a_tenants_latency_is_within_a_tenth_of_alone(case, most_lost):
    """This holds at the median and at p95. Its TTFT grows by up to the step that runs when it arrives. The two together
    have most of the output that the flood has alone: less where answers are long, since room for all of them to grow
    stays free.
    """
    alone, _ = beside(replace(case, flood_per_s=0.0))
    both, flood = beside(case)
    _, flood_alone = beside(replace(case, steady_per_s=0.0, runs=1))
    assert alone.keys() == both.keys()
    step_s = case.shape.cost.seconds(StepWork(case.shape.slots, case.flood[0], 0, 0))
    for share in (0.5, 0.95):
        ratio = quantile(map(latency, both.values()), share) / quantile(map(latency, alone.values()), share)
        assert ratio <= 1.1
        added = quantile(map(ttft, both.values()), share) - quantile(map(ttft, alone.values()), share)
        assert added <= 1.5 * step_s
    assert flood + case.steady_per_s * case.steady[1] >= (1 - most_lost) * flood_alone

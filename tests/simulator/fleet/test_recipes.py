"""The recipes that end in an HPA: KEDA's, llm-d's, WVA."""

import pytest

from inflight_cost.model import CostModel
from inflight_settings.limits import Limits
from inflight_simulator.fleet.scalers.hpa import keda_production_stack
from inflight_simulator.fleet.scalers.llmd import (
    idle_prefill_rate,
    llmd_queue,
    llmd_saturation,
    llmd_slo,
    llmd_token_aware,
    replicas_by_score,
)
from inflight_simulator.fleet.scalers.signals import flow_control_queue, saturation
from inflight_simulator.fleet.scalers.wva import (
    ComputeBound,
    ReplicaLoad,
    Sizes,
    capacity,
    demand,
    replicas_in_band,
    wva,
)
from tests.simulator.fleet.scalers_support import histogram, sample, times, view

LIMITS = Limits(256, 8192)


def test_production_stack_asks_for_a_replica_for_each_five_that_wait():
    assert keda_production_stack().replicas(view([sample(waiting=7), sample(waiting=8)])) == 3


def test_production_stack_sees_nothing_until_requests_wait():
    seen = view([sample(running=256, kv=0.99)])
    assert keda_production_stack().replicas(seen) == 1


def test_llmd_queue_waits_300_seconds_with_more_replicas():
    busy = lambda now: view([sample(running=64, waiting=0)], now=now)  # noqa: E731
    found = times(llmd_queue(), 330, busy)
    assert found[:20] == [1] * 20
    # The window is over: 64 / 16 is 4, of which 100% in 15 s allows 2.
    assert found[20] == 2


def test_flow_control_would_hold_what_waits_above_the_threshold():
    assert flow_control_queue(view([sample(waiting=12), sample(waiting=3)], gateway_queue=2)) == 9


def test_llmd_saturation_is_a_mean_that_is_divided_as_a_total():
    """Eight pods, each twice as full as it should be, and it asks for three of them."""
    pods = [sample(waiting=10, kv=0.5)] * 8
    assert saturation(view(pods)) == 2.0
    found = times(llmd_saturation(), 330, lambda now: view(pods, now=now))
    assert found[-1] == 3


def test_the_idle_prefill_rate_is_that_of_full_steps():
    cost = CostModel(base_s=0.01, decode_seq_s=0, prefill_token_s=1e-5, decode_kv_token_s=0, prefill_context_token_s=0)
    assert idle_prefill_rate(cost, Limits(256, 1000)) == pytest.approx(1000 / 0.02)


def test_llmd_token_aware_adds_one_pod_in_180_seconds_whatever_waits():
    scaler = llmd_token_aware(prefill_rate=10_000.0)
    waiting = view([sample(waiting_prompt_tokens=150_000)])
    assert scaler.replicas(waiting) == 2


@pytest.mark.parametrize(("tokens", "kv", "wanted"), [(15_000, 0.1, 1), (30_000, 0.1, 2), (0, 1.0, 2)])
def test_llmd_token_aware_goes_by_seconds_of_prefill_and_by_kv_cache(tokens, kv, wanted):
    scaler = llmd_token_aware(prefill_rate=10_000.0)
    assert scaler.replicas(view([sample(waiting_prompt_tokens=tokens, kv=kv)])) == wanted


@pytest.mark.parametrize(
    ("score", "replicas", "ready", "wanted"),
    [
        (0.50, 4, 4, 4),
        (1.10, 4, 4, 8),
        (2.00, 4, 4, 15),  # 4 + ceil(4 x (2 / 0.55 - 1)) = 4 + ceil(10.5)
        (1.10, 4, 2, 4),  # half of them start: g = 0.5 takes the whole order back
        (0.80, 4, 1, 2),  # and what starts can turn an order for more into one for fewer
        (1.10, 4, 0, 8),  # none is ready: g = 1
        (0.20, 4, 4, 2),
        (0.00, 4, 4, 0),
    ],
)
def test_llmd_slo_orders_in_proportion_to_the_score(score, replicas, ready, wanted):
    assert replicas_by_score(score, replicas, ready) == wanted


def test_llmd_slo_goes_by_the_90th_percentile_of_the_last_minute():
    late = histogram(*[0.7] * 10)
    scaler = llmd_slo(ttft=0.5, tpot=0.05)
    found = times(scaler, 120, lambda now: view([sample(ttft=histogram())], now=now))
    assert found[-1] == 1
    scaler = llmd_slo(ttft=0.5, tpot=0.05)
    grown = {0: histogram(), 15: late, 30: late, 45: late}
    found = times(scaler, 60, lambda now: view([sample(ttft=grown[int(now)])], now=now))
    # P90 of (0.5, 1.0] is 0.95: 1.9 of the target. Means over 45 s are 0, 0.95, 1.27; the window waits 30 s.
    assert found == [1, 1, 2, 3]


SIZES = Sizes(prompt=1000, output=200)


def load(kv=0.5, queue=0.0, kv_tokens=100_000, limits=LIMITS):
    return ReplicaLoad(kv, queue, kv_tokens, limits)


def test_wva_believes_limits_until_a_queue_shows_where_steps_are_full():
    compute = ComputeBound()
    # min(8192 x 200 / 1200, 256) = 256 requests of 1,100 tokens are more than 80% of the memory.
    assert capacity([load()], SIZES, compute) == 80_000
    assert capacity([load(kv=0.3, queue=5)], SIZES, compute) == pytest.approx(30_000)
    assert capacity([load(kv=0.5, queue=9)], SIZES, compute) == pytest.approx(50_000)
    # Without a queue the mean of what was seen counts, until there is another queue.
    assert capacity([load(kv=0.7)], SIZES, compute) == pytest.approx(40_000)
    # Outputs of another class of lengths have a memory of their own.
    assert capacity([load()], Sizes(1000, 50), compute) == 80_000


def test_wva_forgets_after_ten_samples():
    compute = ComputeBound()
    for kv in [0.1, *[0.6] * 10]:
        compute.tokens(load(kv=kv, queue=5), SIZES, 80_000)
    assert compute.tokens(load(), SIZES, 80_000) == pytest.approx(60_000)


def test_wva_has_a_capacity_before_it_knows_sizes():
    assert capacity([load()], Sizes(0, 0), ComputeBound()) == 80_000


def test_wva_charges_a_waiting_request_its_whole_output():
    assert demand([load(kv=0.4), load(kv=0.6, queue=10)], SIZES, 0) == pytest.approx(100_000 + 10 * 1200)
    assert demand([], Sizes(1000, 200, hit_rate=0.5), 10) == pytest.approx(10 * 500 + 10 * 200)


@pytest.mark.parametrize(
    ("wanted", "ordered", "reporting", "starting", "replicas"),
    [
        (85_000, 1, 1, 0, 2),  # 100,000 / 50,000
        (85_000, 2, 1, 1, 2),  # the one that starts has full credit
        (300_000, 2, 1, 1, 8),  # 353 / 50 = 7.06, of which 2 are there
        (70_000, 4, 4, 0, 2),  # 200,000 - 100,000 is two
        (150_000, 4, 4, 0, 4),  # in the band
    ],
)
def test_wva_keeps_demand_within_its_band(wanted, ordered, reporting, starting, replicas):
    assert replicas_in_band(wanted, 50_000, ordered, reporting, starting) == replicas


def test_wva_goes_through_windows_of_60_seconds():
    full = lambda now: view([sample(kv=0.95)] * 4, now=now)  # noqa: E731
    found = times(wva(), 75, full)
    assert found == [4, 4, 4, 4, 6]


def test_wva_repeats_its_last_number_without_metrics():
    scaler = wva()
    for now in (0.0, 15.0):
        scaler.replicas(view([sample(kv=0.95)] * 4, now=now))
    assert scaler.replicas(view([], starting=4, now=75.0)) == 6

"""The scalers with a controller of their own: Dynamo's planner, AIBrix, KubeAI, Knative."""

import pytest

from inflight_cost.model import CostModel
from inflight_settings.limits import Limits
from inflight_simulator.fleet.scalers.aibrix import Aibrix, apa, kpa
from inflight_simulator.fleet.scalers.dynamo import (
    DynamoLoad,
    DynamoSla,
    DynamoThroughput,
    EngineLoad,
    IterationModel,
    Means,
    change_by_latency,
    change_by_use,
    next_value,
)
from inflight_simulator.fleet.scalers.knative import Knative, wanted
from inflight_simulator.fleet.scalers.kubeai import KubeAI
from tests.simulator.fleet.scalers_support import histogram, sample, times, view

COST = CostModel(
    base_s=0.01, decode_seq_s=1e-4, prefill_token_s=1e-5, decode_kv_token_s=1e-7, prefill_context_token_s=0.0
)
MODEL = IterationModel(COST, Limits(256, 1100), kv_capacity=100_000)
MEANS = Means(prompt=1000, output=100)


def test_dynamo_predicts_ttft_in_chunks():
    load = EngineLoad(running=100, kv_tokens=50_000, queued_tokens=1500)
    # 2,500 tokens are two chunks of 1,100 and one of 300.
    assert MODEL.ttft(load, MEANS) == pytest.approx(3 * (0.01 + 100e-4 + 50_000e-7) + 2500e-5)


def test_dynamo_predicts_the_time_between_tokens_beside_the_prompts_of_a_mean_step():
    load = EngineLoad(running=100, kv_tokens=50_000, queued_tokens=1500)
    means = Means(prompt=1000, output=100, step_prefill=400)
    assert MODEL.itl(load, means) == pytest.approx(0.01 + 101e-4 + 51_050e-7 + 400e-5)


def test_dynamo_takes_the_prefix_cache_off_the_prompt_up_to_95_percent():
    cached = Means(1000, 100, hit_rate=1.0)
    assert MODEL.ttft(EngineLoad(0, 0, 0), cached) == pytest.approx(0.01 + 50e-5)


def test_dynamo_finds_the_batch_that_gives_most_within_both_targets():
    # At batch b an iteration takes 0.01 + b x (1e-4 + 1050e-7 + 10 x 1e-5) s.
    rate = MODEL.largest_rate(MEANS, ttft=10.0, tpot=0.0223)
    assert rate == pytest.approx(40 / (100 * (0.01 + 40 * 3.05e-4)), rel=1e-6)
    # 95 requests of 1,050 tokens fill the KV cache.
    assert MODEL.largest_rate(MEANS, ttft=10.0, tpot=10.0) == pytest.approx(95 / (100 * (0.01 + 95 * 3.05e-4)))
    # Of a budget of 110 tokens 10 decodes leave what their prompts come in with.
    narrow = IterationModel(COST, Limits(256, 110), kv_capacity=100_000)
    assert narrow.largest_rate(MEANS, ttft=10.0, tpot=10.0) == pytest.approx(10 / (100 * (0.01 + 10 * 3.05e-4)))


def test_dynamo_counts_on_a_batch_of_one_where_none_keeps_the_targets():
    assert MODEL.largest_rate(MEANS, ttft=0.001, tpot=0.001) == pytest.approx(1 / (100 * (0.01 + 3.05e-4)))


FULL, IDLE = EngineLoad(100, 50_000, 50_000), EngineLoad(0, 0, 0)


@pytest.mark.parametrize(
    ("loads", "by"),
    [([FULL, FULL], 1), ([FULL, IDLE], 0), ([IDLE, IDLE], -1), ([IDLE], 0), ([EngineLoad(200, 10_000, 0)], 1)],
)
def test_dynamo_load_adds_one_when_all_miss_and_one_idle_engine_vetoes(loads, by):
    assert change_by_latency(loads, MODEL, MEANS, ttft=0.5, tpot=0.03) == by


def test_dynamo_load_keeps_a_replica_whose_load_would_not_fit_elsewhere():
    loads = [EngineLoad(10, 60_000, 0)] * 2
    assert change_by_latency(loads, MODEL, MEANS, ttft=5.0, tpot=5.0) == 0
    assert change_by_latency([EngineLoad(10, 40_000, 0)] * 2, MODEL, MEANS, ttft=5.0, tpot=5.0) == -1


def busy(now, starting=0, engines=1):
    shown = sample(
        running=100, waiting=50, kv=0.5, waiting_prompt_tokens=50_000, arrived=10 * now, arrived_tokens=10_000 * now
    )
    return view([shown] * engines, starting=starting, now=now)


def test_dynamo_load_adds_one_replica_for_each_start_up():
    scaler, ordered, ready, ready_at, found = DynamoLoad(MODEL, ttft=0.5, tpot=0.05), 1, 1, 0.0, []
    for step in range(30):
        now = 5.0 * step
        if ordered > ready and now >= ready_at:
            ready = ordered
        after = scaler.replicas(busy(now, ordered - ready, ready))
        if after > ordered:
            ready_at = now + 60
        ordered = after
        found.append(ordered)
    assert found == [1] + [2] * 12 + [3] * 12 + [4] * 5


@pytest.mark.parametrize(
    ("uses", "by"), [([0.7, 1.1], 1), ([0.5, 0.7], 0), ([0.5, 0.59], -1), ([], 0), ([1.0, 0.6], 0)]
)
def test_dynamo_throughput_adds_for_any_and_removes_for_all(uses, by):
    assert change_by_use(uses) == by


def test_dynamo_throughput_counts_queued_prompts_and_observes_while_a_replica_starts():
    full = sample(kv=0.7, waiting_prompt_tokens=40_000)
    assert DynamoThroughput().replicas(view([full])) == 2
    assert DynamoThroughput().replicas(view([full], starting=1)) == 2


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0, 3.0, 4.0], 4.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 6.0),  # each difference repeats the one before
        ([0.0, 8.0, 12.0, 14.0, 15.0], 15.5),  # each difference is half of the one before
        ([5.0, 5.0, 5.0, 5.0, 5.0], 5.0),
        ([16.0, 8.0, 4.0, 2.0, 0.5, 0.0], 0.0),
    ],
)
def test_the_forecast_goes_on_by_a_share_of_the_last_difference(series, expected):
    assert next_value(series) == pytest.approx(expected, abs=0.05)


def test_dynamo_sla_divides_the_rate_by_that_of_one_engine():
    scaler = DynamoSla(MODEL, ttft=10.0, tpot=0.0223)

    def at(now):
        finished = histogram(*[0.02] * int(10 * now))
        shown = sample(arrived=10 * now, arrived_tokens=10_000 * now, generation_tokens=1000 * now, tpot=finished)
        return view([shown], now=now)

    # Nothing is known at 0; then 10 requests a second at 40 / 2.22 s.
    assert times(scaler, 361, at) == [1, 1, 1]
    fast = DynamoSla(MODEL, ttft=10.0, tpot=0.0125)
    assert times(fast, 361, at) == [1, 2, 2]


def test_aibrix_kpa_takes_a_mean_for_a_total():
    assert kpa(stable=0.6, panic=0.6, target=0.5, replicas=8) == 4


def test_aibrix_kpa_goes_by_the_panic_mean_above_twice_the_stable_one():
    assert kpa(stable=1.0, panic=2.5, target=0.5, replicas=4) == 5
    assert kpa(stable=1.0, panic=2.0, target=0.5, replicas=4) == 2
    assert kpa(stable=9.0, panic=9.0, target=0.5, replicas=4) == 8


@pytest.mark.parametrize(
    ("mean", "wanted"), [(0.54, 8), (0.56, 9), (2.0, 16), (0.46, 8), (0.44, 8), (0.4, 7), (0.0, 4)]
)
def test_aibrix_apa_goes_by_the_ratio_within_twice_and_half(mean, wanted):
    assert apa(mean, 0.5, 8) == wanted


def test_aibrix_apa_doubles_each_loop_while_pods_start():
    scaler, ordered, found = Aibrix("apa"), 2, []
    for step in range(4):
        ordered = scaler.replicas(view([sample(kv=0.99)] * 2, starting=ordered - 2, now=10.0 * step))
        found.append(ordered)
    assert found == [4, 8, 16, 32]


def test_aibrix_cooldown_delays_nothing():
    assert times(Aibrix("apa"), 30, lambda now: view([sample(kv=0.1)] * 8, now=now)) == [4, 4, 4]


def test_aibrix_waits_for_pods_that_answer():
    assert Aibrix("kpa").replicas(view([], starting=3)) == 3


def test_kubeai_takes_ten_minutes_to_follow_a_step():
    found = times(KubeAI(), 620, lambda now: view([sample(running=300, waiting=50)], now=now))
    assert found[0] == 1
    assert found[29] == 2
    assert found[59] == 4


def test_kubeai_removes_after_three_lower_votes():
    found = times(KubeAI(), 40, lambda now: view([sample(running=10)] * 4, now=now))
    assert found == [4, 4, 1, 4]


@pytest.mark.parametrize(("mean", "ready", "replicas"), [(70, 1, 1), (71, 1, 2), (0, 5, 2), (700, 0, 10), (100, 8, 4)])
def test_knative_divides_by_70_percent_of_100_and_at_most_halves(mean, ready, replicas):
    assert wanted(mean, ready) == replicas


def test_knative_panics_at_twice_the_ready_pods_and_never_falls_until_60_seconds_after():
    def at(now):
        return view([sample(running=280 if now < 10 else 10)], now=now)

    found = times(Knative(), 90, at)
    assert found[0] == 4
    # The panic window holds the peak until 14 s; 60 s after that it ends.
    assert set(found[:36]) == {4}
    assert found[-1] == 1


def test_knative_counts_what_the_gateway_holds():
    assert Knative().replicas(view([sample(running=30)], gateway_queue=110)) == 2

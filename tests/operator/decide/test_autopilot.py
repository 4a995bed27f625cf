"""Replicas that demand needs: properties for any demand, and each part of the number."""

import math
import re
import struct
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_base.manifest.defaults import SCALE_DOWN_SECONDS
from inflight_cost.capacity import Margins, Replica, Targets, Workload
from inflight_cost.limits import best_limits
from inflight_cost.model import CostModel, StepWork
from inflight_operator.decide.replicas.autopilot import (
    SLOT,
    AutopilotPolicy,
    DemandMemory,
    capacity_within,
    decide_replicas,
)
from inflight_operator.decide.replicas.behavior import Behavior, ScalingHistory, ScalingRules, recorded, stabilized
from inflight_operator.decide.replicas.demand import DemandPoint, DemandView
from inflight_operator.decide.status.sentences import sentence
from inflight_settings.limits import Limits, LimitsBounds

REPLICA = Replica(CostModel(5.5e-3, 15e-6, 30e-6, 0.045e-6, 1.05e-9), 400_000.0)
WORKLOAD = Workload(1155.0, 1155.0, 2.0e6, 211.0, 9.0e4)
TARGETS = Targets(0.5, 0.05)
LIMITS = LimitsBounds(Limits(1, 64), Limits(256, 2048))
EACH = capacity_within(REPLICA, WORKLOAD, TARGETS, LIMITS, AutopilotPolicy().margins)[0]


def series(rates, now, width=3.0):
    return tuple(DemandPoint(now - (len(rates) - 1 - index) * width, rate) for index, rate in enumerate(rates))


def view(rates, now=1000.0, **more):
    fields = {
        "calendar": 1_700_000_000.0 + now,
        "workload": WORKLOAD,
        "replica": REPLICA,
        "waiting": 0,
        "running": 10,
        "waiting_tokens": 0.0,
        "ready": 4,
        "starting": (),
        "start_up": 60.0,
    }
    return DemandView(time=now, points=series(rates, now), **{**fields, **more})


def decided(seen, memory=None, **policy):
    return decide_replicas(seen, TARGETS, LIMITS, memory or DemandMemory(), AutopilotPolicy(**policy))[:3]


def test_a_steady_rate_needs_its_share_of_capacity_and_a_margin_and_says_so():
    replicas, reason, _ = decided(view([49.0] * 60))
    assert reason.numbers["need"] == pytest.approx(49 / EACH)
    sizing = decide_replicas(view([49.0] * 60), TARGETS, LIMITS, DemandMemory())[3]
    assert sizing == pytest.approx((49, EACH, 49 / EACH))
    assert reason.numbers["margin"] > 0
    assert replicas == pytest.approx(49 / EACH + reason.numbers["margin"], abs=1)
    starting = decided(view([49.0] * 60, ready=replicas - 1, starting=(41.0,)))
    said = sentence(starting[1])
    assert starting[0] == replicas
    assert said.startswith(f"{replicas} replicas: 49 requests/s of 1,155 + 211 tokens need {49 / EACH:.1f} at ")
    assert f"{EACH:.3g}/s each, margin {reason.numbers['margin']:.1f}" in said
    assert said.endswith("ready in 41 s")


def test_the_first_request_of_a_new_service_orders_no_second_replica_and_a_burst_does():
    slow = {"replica": Replica(CostModel(0.06, 1e-3, 2e-3, 1e-6, 1e-9), 16_384.0), "ready": 1}
    slow["workload"] = Workload(40.0, 40.0, 3200.0, 128.0, 32_768.0)
    rounds = [0.0, 1 / 3]
    assert decided(view(rounds, **slow))[0] == 1
    assert decided(view([60 * each for each in rounds], **slow))[0] > 1


@pytest.mark.parametrize("share", [0.45, 0.7, 1.4, 2.2, 4.1])
def test_steady_demand_of_old_pods_orders_no_more_where_the_operator_is_new(share):
    steady = decided(view([share * EACH] * 60, pooled=True, ordered=True, ready_for=3600.0))[0]
    for rounds in range(2, 22):
        seen = view([share * EACH] * rounds, pooled=True, ordered=True, ready=steady, ready_for=3600.0)
        assert decided(seen)[0] == steady


def test_the_rate_of_a_new_service_makes_no_step_when_its_first_minute_is_over():
    """A step there took a replica away and ordered it again, 3 s later."""
    bursts = [0.0, *([40.0, 0.0] * 20)]
    rates = [decided(view(bursts[:count]))[1].numbers["rate"] for count in (20, 21, 22)]
    means = [sum(bursts[1:count]) / (count - 1) for count in (20, 21)]
    assert rates[0] == pytest.approx(means[0], rel=0.05)
    assert rates[1:] == pytest.approx([means[1], means[1]], rel=0.05)


@given(st.floats(10, 100))
def test_the_share_of_the_margin_falls_as_the_fleet_grows(rate):
    small, large = (decided(view([one] * 60, pooled=True))[1].numbers for one in (rate, 10 * rate))
    assert large["margin"] / large["need"] < small["margin"] / small["need"]


@given(st.floats(0, 500), st.floats(0, 200))
def test_more_demand_never_needs_fewer(rate, more):
    assert decided(view([rate + more] * 60))[0] >= decided(view([rate] * 60))[0]


def test_a_target_that_grows_with_the_prompt_counts_as_that_of_a_mean_prompt():
    def needed(targets):
        return decide_replicas(view([200.0] * 60), targets, LIMITS, DemandMemory())[1].numbers["margin"]

    per_token = 0.5 / WORKLOAD.prompt
    assert needed(Targets(0.5, 0.05, per_token)) == pytest.approx(needed(Targets(1.0, 0.05)))
    assert needed(Targets(0.5, 0.05, per_token)) < needed(Targets(0.5, 0.05))


def test_no_demand_needs_one():
    replicas, reason, _ = decided(view([0.0] * 60))
    assert replicas == 1
    assert sentence(reason).startswith("1 replica: 0 requests/s")


def test_what_waits_comes_on_top_and_what_is_ordered_is_not_asked_for_again():
    seen = view([2 * EACH] * 60, ready=1, waiting=3000, waiting_tokens=3000 * WORKLOAD.prompt)
    replicas, reason, _ = decided(seen)
    assert replicas > decided(replace(seen, waiting=0, waiting_tokens=0.0))[0]
    assert "for 3000 waiting requests" in sentence(reason)
    assert decided(replace(seen, starting=(5.0,) * 3))[0] <= replicas


@given(st.floats(0, 200), st.integers(0, 3000))
def test_what_waits_is_demand_over_the_time_of_recovery_and_no_replica_each(rate, waiting):
    queue = {"waiting": waiting, "waiting_tokens": waiting * WORKLOAD.prompt, "ready": 1}
    replicas, reason, _ = decided(view([rate] * 60, **queue), growth=0.0, untried=0.0)
    beside = waiting / AutopilotPolicy().recovery
    assert replicas == decided(view([rate + beside] * 60, ready=1), growth=0.0, untried=0.0)[0]
    printed = f", {beside / EACH:.1f} for {waiting} waiting request"
    assert (printed in sentence(reason)) == (beside / EACH >= 0.05)


@given(st.floats(0, 200), st.integers(0, 30_000))
def test_what_arrives_may_grow_and_what_waits_does_not(rate, waiting):
    """In a new service, whose demand may double, a queue would count twice."""
    queue = {"waiting": waiting, "waiting_tokens": waiting * WORKLOAD.prompt, "ready": 1}
    alone, bare, both = (
        decided(view([each] * 60, **queue), growth=growth, untried=untried)[0]
        for each, growth, untried in ((0.0, 0.3, 1.0), (rate, 0.0, 0.0), (rate, 0.3, 1.0))
    )
    assert alone == decided(view([0.0] * 60, **queue), growth=0.0, untried=0.0)[0]
    assert bare <= both <= decided(view([2.3 * rate] * 60, **queue), growth=0.0, untried=0.0)[0]


def test_demand_that_rises_is_expected_to_rise_on_and_demand_that_falls_to_stay():
    rising = [20 + index * 0.3 for index in range(60)]
    steady, expected = (decided(view(rates))[1].numbers["rate"] for rates in ([rising[-1]] * 60, rising))
    assert steady * 0.9 < expected <= rising[-1] + 60 * 0.1 + 5
    late = decided(view(rising, start_up=120.0))[1].numbers["rate"]
    assert late >= expected
    assert decided(view(rising[::-1]))[1].numbers["rate"] <= rising[20]


def test_noise_is_no_rise():
    noisy = [20 + (4 if index % 2 else -4) for index in range(60)]
    assert decided(view(noisy, start_up=300.0))[1].numbers["rate"] == pytest.approx(20, rel=0.15)


def test_where_demand_jumps_replicas_stand_ready_between_the_jumps():
    memory, calm = DemandMemory(), decided(view([20.0] * 60))[0]
    for step in range(800):
        now = 3.0 * step
        rates = [90.0 if (now - 3 * back) // 150 % 2 else 20.0 for back in range(60)][::-1]
        replicas, reason, memory = decided(view(rates, now=now), memory)
        if now > 900 and now // 150 % 2 == 0 and now % 150 > 120:
            assert replicas > calm
            assert "ready for demand that jumps as it did lately" in sentence(reason)
    assert len(memory.spells) <= 100


@pytest.mark.parametrize("factor", [3.0, 4.5])
def test_replicas_that_stand_ready_carry_the_next_jump_and_no_growth_beyond_it(factor):
    memory, low = DemandMemory(), 30.0
    for step in range(700):
        now = 3.0 * step
        rates = [low * factor if (now - 3 * back) // 300 % 2 else low for back in range(60)][::-1]
        replicas, _, memory = decided(view(rates, now=now), memory)
    assert now % 600 == 297
    least = decided(view([low * factor] * 60, ready_for=3600.0), growth=0.0)[0]
    assert replicas in (least, least + 1)  # demand is expected to rise on while it rises


def test_growth_that_there_is_room_for_keeps_no_replicas_ready():
    memory = DemandMemory()
    for step in range(700):
        now = 3.0 * step
        rates = [24.0 if (now - 3 * back) // 300 % 2 else 20.0 for back in range(60)][::-1]
        replicas, _, memory = decided(view(rates, now=now), memory)
    assert replicas == decided(view([20.0] * 60, ready_for=3600.0))[0]


def test_a_service_whose_demand_never_jumped_keeps_nothing():
    memory = DemandMemory()
    for step in range(400):
        replicas, _, memory = decided(view([20.0] * 60, now=3.0 * step), memory)
    assert replicas == decided(view([20.0] * 60, ready_for=3600.0))[0]


@pytest.mark.parametrize("rate", [12.0, 20.0, 90.0, 200.0])
def test_an_old_service_has_room_for_30_percent_more_but_at_most_for_what_one_replica_gets(rate):
    replicas, reason, _ = decided(view([rate] * 60, ready=1, ready_for=86_400.0))
    assert reason.numbers["growth"] == pytest.approx(min(0.3, 1 / (replicas - 1)))


@pytest.mark.parametrize(
    ("age", "start_up", "more"),
    [
        (60.0, 60.0, 0.475),
        (300.0, 60.0, 0.125),
        (1200.0, 60.0, 0.0),
        (86_400.0, 60.0, 0.0),
        (60.0, 10.0, 0.1357),
        (300.0, 300.0, 0.375),
        (300.0, 3000.0, 0.375),
    ],
)
def test_a_younger_fleet_has_room_for_more_growth_the_longer_replicas_take_to_start(age, start_up, more):
    young = view([90.0] * min(60, int(age / 3) + 1), ready=1, ready_for=age, start_up=start_up)
    seen = replace(young, ready_for=0.0)  # all pods are new, the service is not
    for replicas, reason, _ in (decided(young), decided(seen, DemandMemory(since=seen.time - age))):
        room = min(0.3, 1 / (replicas - 1))
        assert reason.numbers["growth"] == pytest.approx(room + more, abs=1e-4)


def test_one_replica_of_a_service_in_its_first_minute_has_room_for_180_percent_more_and_less_and_less():
    replicas, reason, _ = decided(view([12.0] * 11, ready=1))
    assert replicas == 2
    assert reason.numbers["growth"] == pytest.approx(0.3 + 1.8 / 2)


def test_the_rate_is_that_of_a_minute_and_a_queue_is_worked_off_in_one():
    seen = view([20.0] * 43 + [16.0] * 17, waiting=600, waiting_tokens=600 * WORKLOAD.prompt)
    numbers = decided(seen)[1].numbers
    assert numbers["rate"] == pytest.approx((3 * 20 + 17 * 16) / 20)
    assert numbers["backlog"] == pytest.approx(10 / EACH)


def test_a_replica_that_demand_may_need_again_by_chance_stays_beside_those_for_a_queue():
    queue = {"waiting": 3000, "waiting_tokens": 3000 * WORKLOAD.prompt, "ready_for": 3600.0}
    need = decided(view([33.0] * 60, ready=1, **queue))[0]
    assert decided(view([33.0] * 60, ready=need + 1, **queue))[0] == need + 1


@pytest.mark.parametrize(("deviations", "rises"), [(2.8, False), (3.2, True)])
def test_a_slope_counts_from_three_standard_deviations_of_one_by_chance(deviations, rises):
    slope = deviations * math.sqrt(12 * 20 / 177**3)
    seen = view([20 + slope * (3 * step - 147) for step in range(60)])
    assert (decided(seen)[1].numbers["rate"] > 1.05 * seen.rate(60.0)) == rises


@pytest.mark.parametrize(
    ("jump", "peak", "kept"),
    [
        (1.29, 6.0, 5),  # what 60 requests/s need
        (1.31, 6.0, 6),
        (1.59, 6.0, 6),
        (1.61, 6.0, 7),  # a fifth more than the peak
        (4.0, 10.0, 12),
        (4.0, 20.0, 17),  # what the next such jump would need
    ],
)
def test_after_a_jump_the_peak_stays_ready_or_a_little_more_and_no_more_than_the_next_jump_needs(jump, peak, kept):
    past = struct.pack("<3dI", 995.0, 4.0, peak, 10**6)
    memory = DemandMemory(since=0.0, jump=jump, past=past)
    assert decided(view([60.0] * 60, ready_for=86_400.0), memory)[0] == kept
    if kept == 17:
        assert kept == decided(view([4 * 60.0] * 60, ready_for=86_400.0), growth=0.0)[0]


@pytest.mark.parametrize("rate", [30.0, 60.0, 200.0])
def test_a_new_fleet_has_room_for_growth_that_was_not_seen_to_be_absent_and_an_old_one_has_not(rate):
    def ordered(age, start_up=60.0):
        rounds = min(60, round(age / 3) + 1)
        return decided(view([rate] * rounds, ready_for=age, start_up=start_up, pooled=True, ordered=True))[0]

    ages = [60.0, 120.0, 300.0, 900.0, 1200.0, 86_400.0]
    course = [ordered(age) for age in ages]
    assert all(later <= earlier for earlier, later in pairwise(course))
    assert course[0] > course[-2] == course[-1]
    assert ordered(60.0, start_up=5.0) < course[0]


def test_peaks_that_are_remembered_are_what_demand_needed_without_room_for_growth():
    """Else growth counts twice where demand jumps: in the peak, and in the headroom above it."""
    memory = DemandMemory()
    for step in range(100):
        replicas, _, memory = decided(view([90.0] * min(60, step + 1), now=3.0 * step), memory)
    assert memory.peak_need(0.0) == decided(view([90.0] * 60, ready_for=3600.0), growth=0.0)[0]
    assert replicas > memory.peak_need(0.03)


def test_demand_that_grows_to_its_level_in_a_services_first_minutes_keeps_little_above_it_afterwards():
    memory = DemandMemory()
    for step in range(180):
        now = 3.0 * step
        rates = [66.0 * min(1.0, (now - 3 * back) / 120) for back in range(min(step, 59) + 1)][::-1]
        replicas, _, memory = decided(view(rates, now=now, pooled=True, ordered=True), memory)
    assert memory.jump > 1.6
    old = decided(view([66.0] * 60, ready_for=3600.0, pooled=True, ordered=True))[0]
    assert replicas <= old + 1


def test_what_was_needed_at_this_time_yesterday_stands_ready():
    memory, morning = DemandMemory(), 1_700_000_100.0 // SLOT * SLOT
    for slot in range(300):
        load = 90.0 if slot == 5 else 10.0
        seen = view([load] * 60, now=SLOT * slot, calendar=morning + slot * SLOT)
        replicas, reason, memory = decided(seen, memory)
        if slot == 5:
            high = replicas
        if slot in (288 + 4, 288 + 5):
            assert replicas >= math.ceil(0.9 * (high - 1) - 0.05)
            assert "of this time yesterday" in sentence(reason)
        if slot in (288, 288 + 3):
            assert replicas < high / 2
    assert len(memory.week) == 4 * 2016


def test_two_known_days_must_agree():
    def week_of(day, week):
        peaks = [0.0] * 2016
        peaks[2016 - 288], peaks[0] = day, week
        return DemandMemory(week=struct.pack("<2016f", *peaks))

    assert week_of(6.0, 3.0).season(0.0, 0.0) == 3.0
    assert week_of(6.0, 0.0).season(0.0, 0.0) == 6.0
    assert DemandMemory().season(0.0, 0.0) == 0.0


def test_targets_that_no_engine_keeps_are_left_out_of_capacity_and_margin_and_named():
    replicas, reason, *_ = decide_replicas(view([61.0] * 60), Targets(0.5, 0.001), LIMITS, DemandMemory())
    assert "no engine can keep tpotP95 of spec.slo at any load: replicas are computed without it" in sentence(reason)
    without, other, *_ = decide_replicas(view([61.0] * 60), Targets(0.5), LIMITS, DemandMemory())
    assert replicas == without <= 10
    assert reason.numbers == other.numbers


def test_demand_that_was_not_watched_long_enough_takes_no_replica_away():
    replicas, reason, _ = decided(view([1.0] * 4, ready=6))
    assert replicas == 6
    assert "not enough requests have been observed yet: 5 more stay as ordered" in sentence(reason)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(5, 100),
    st.floats(1.2, 5),
    st.integers(3, 8),
    st.sampled_from([10.0, 60.0, 120.0]),
)
def test_a_step_of_demand_is_ordered_once_and_not_again_while_replicas_start(rate, factor, seconds, start_up):
    """A fluid model: requests wait where the rate is above what ready replicas do; demand steps up at 300 s."""
    memory, rates, backlog = DemandMemory(), [], 0.0
    ready, starting, course = decided(view([rate] * 60))[0], [], []
    tick = float(seconds)
    for step in range(int(900 / tick)):
        now = step * tick
        arriving = rate * (factor if now >= 300 else 1.0)
        rates = [*rates, arriving][-int(300 / tick) :]
        backlog = max(0.0, backlog + (arriving - ready * EACH) * tick)
        ready += sum(at <= now for at in starting)
        starting = [at for at in starting if at > now]
        seen = replace(
            view([], now=now, ready=ready, start_up=start_up, starting=tuple(at - now for at in starting)),
            points=series(rates, now, tick),
            waiting=int(backlog),
            waiting_tokens=backlog * WORKLOAD.prompt,
        )
        wanted, _, memory = decided(seen, memory)
        starting += [now + start_up] * (wanted - ready - len(starting))
        course.append((now, wanted))
    before = [wanted for now, wanted in course if 60 <= now < 300]
    after = [wanted for now, wanted in course if now >= 300]
    assert all(later <= earlier for earlier, later in pairwise(before))
    # What the new rate needs once it is steady; the rise is extrapolated while it lasts, and what waited meanwhile is
    # worked off in the time of recovery.
    steady = decided(view([rate * factor] * 60))[0]
    waited = rate * (factor - 1) * (start_up + 45) / EACH / AutopilotPolicy().recovery
    assert max(after) <= math.ceil(1.3 * steady + 2 + 1.2 * waited)
    assert max(after) >= math.floor(rate * factor / EACH)
    settled = [wanted for now, wanted in course if now >= 300 + start_up + 90]
    assert all(later <= earlier for earlier, later in pairwise(settled))


@given(st.floats(0.030, 0.060))
def test_a_target_that_a_lone_request_just_keeps_orders_no_tenfold_fleet(base):
    slow = Replica(CostModel(base, 15e-6, 30e-6, 0.045e-6, 1.05e-9), 400_000.0)
    free = capacity_within(slow, WORKLOAD, Targets(), LIMITS, Margins(prefill=1.0))[0]
    assert capacity_within(slow, WORKLOAD, TARGETS, LIMITS, Margins(prefill=1.0))[0] >= free / 5 * 0.999


@pytest.mark.parametrize("ordered", [False, True])
@given(st.floats(0.01, 0.06), st.floats(0.001, 0.012))
def test_a_few_requests_on_a_slow_machine_order_no_fleet(ordered, base, each):
    """Steps near the TPOT target leave few requests a second; a single request does not wait."""
    slow = Replica(CostModel(base, each, 0.0004, 1e-7, 0.0), 50_000.0)
    small = Workload(38.0, 38.0, 1_500.0, 96.0, 11_000.0)
    seen = view([1 / 30] * 60, replica=slow, workload=small, ready=1, ordered=ordered)
    assert decided(seen)[0] == 1


@st.composite
def services(draw):
    """A replica, requests, targets and bounds of the limits: within TTFT ten steps or mean prompts are computed, and
    eight requests at once keep TPOT."""
    per_token = draw(st.floats(2e-6, 2e-3))
    cost = CostModel(draw(st.floats(1e-3, 0.06)), per_token * draw(st.floats(0.2, 2)), per_token, 1e-7, 0.0)
    prompt, output = draw(st.floats(10, 8000)), draw(st.floats(2, 800))
    computed = prompt * draw(st.floats(0.05, 1))
    unequal = draw(st.floats(1, 3))
    workload = Workload(prompt, computed, unequal * prompt**2, output, draw(st.floats(1, 4)) * output**2)
    step = cost.seconds(StepWork(8, computed / output * 8, 8 * workload.decode_context, 0))
    ttft = draw(st.none() | st.floats(10, 100).map(lambda times: times * (computed * per_token + step)))
    targets = Targets(ttft, draw(st.none() | st.floats(2, 10).map(lambda times: times * step)))
    bounds = LimitsBounds(Limits(1, 64), Limits(draw(st.sampled_from([16, 64, 256])), 8192))
    kv_tokens = draw(st.floats(16, 400)) * workload.decode_context
    return {"replica": Replica(cost, kv_tokens), "workload": workload}, targets, bounds


@given(services(), st.floats(0, 0.4), st.floats(5, 300), st.booleans(), st.booleans())
def test_below_40_percent_of_a_replicas_capacity_there_is_never_a_second(service, share, start_up, pooled, ordered):
    fields, targets, bounds = service
    each = capacity_within(*fields.values(), targets, bounds, AutopilotPolicy().margins).rate
    memory = DemandMemory()
    for step in range(20):
        # Nothing at first, then demand that comes at once, which is a jump for the memory of demand.
        rates = [share * each if step > 9 else 0.0] * 60
        seen = view(rates, now=30.0 * step, ready=1, start_up=start_up, pooled=pooled, ordered=ordered, **fields)
        replicas, reason, memory, sizing = decide_replicas(seen, targets, bounds, memory)
        assert replicas == 1, (sizing, reason)


@given(services(), st.floats(0, 3), st.booleans(), st.booleans())
def test_a_second_replica_is_for_the_predicted_95th_percentile_and_says_so(service, share, pooled, ordered):
    fields, targets, bounds = service
    each = capacity_within(*fields.values(), targets, bounds, AutopilotPolicy().margins).rate
    seen = view([share * each] * 60, ready=1, pooled=pooled, ordered=ordered, **fields)
    replicas, reason, *_ = decide_replicas(seen, targets, bounds, DemandMemory())
    if replicas == 2 and share < 1:
        assert reason.numbers["late"] > 0.05
        assert "1 replica would start" in sentence(reason)


@settings(max_examples=200)
@given(services(), st.floats(0, 4), st.booleans(), st.booleans())
def test_a_small_step_of_demand_orders_one_replica_at_most_and_takes_none(service, share, pooled, ordered):
    fields, targets, bounds = service
    each = capacity_within(*fields.values(), targets, bounds, AutopilotPolicy().margins).rate
    one, other = (
        decide_replicas(
            view([part * each] * 60, ready=1, pooled=pooled, ordered=ordered, **fields), targets, bounds, DemandMemory()
        )[0]
        for part in (share, share + 0.05)
    )
    assert one <= other <= one + 1


@given(st.floats(0, 20), st.integers(0, 500), st.integers(1, 25))
def test_the_sentence_names_a_share_of_late_requests_that_is_too_large(share, waiting, credited):
    """Also where a replica stays because demand may rise again by chance."""
    seen = view([share * EACH] * 60, ready=credited, waiting=waiting, waiting_tokens=waiting * WORKLOAD.prompt)
    numbers, policy = decided(seen)[1].numbers, AutopilotPolicy()
    need = round(numbers["need"] + numbers.get("backlog", 0) + numbers["margin"])
    if need > 1:
        assert numbers["late"] > policy.late + (policy.alone - policy.late) / (need - 1)


def course(share, seed):
    """Replicas in each round of half an hour of Poisson arrivals at a share of one replica's capacity, with the default
    windows: requests wait where more come than ready replicas do."""
    random = np.random.default_rng(seed)
    behavior, history = Behavior(ScalingRules(0.0), ScalingRules(SCALE_DOWN_SECONDS)), ScalingHistory()
    memory, rates, backlog, replicas, starting = DemandMemory(), [], 0.0, 1, []
    for step in range(600):
        now = 3.0 * step
        starting = [at for at in starting if at > now]
        ready = replicas - len(starting)
        rates = [*rates[-99:], random.poisson(share * EACH * 3) / 3]
        backlog = max(0.0, backlog + (rates[-1] - ready * EACH) * 3)
        queue = {"waiting": int(backlog), "waiting_tokens": int(backlog) * WORKLOAD.prompt}
        seen = view(
            rates, now, ready=ready, starting=tuple(at - now for at in starting), pooled=True, ordered=True, **queue
        )
        wanted, _, memory = decided(seen, memory)
        history = history.at(now, replicas, starting=0)
        then = stabilized(wanted, replicas, behavior, history, now).replicas
        history = recorded(history, now, wanted=wanted, before=replicas, after=then, behavior=behavior)
        starting = [*starting, *[now + 60.0] * (then - replicas)][: max(0, then - ready)]
        replicas = then
        yield replicas


@pytest.mark.parametrize("share", [0.1, 0.4, 0.7, 0.95, 1.2, 2.1, 2.7, 2.85])
def test_constant_demand_changes_replicas_a_few_times_in_half_an_hour(share):
    replicas = list(course(share, 0))[60:]
    assert sum(one != other for one, other in pairwise(replicas)) <= 4
    assert max(replicas) - min(replicas) <= 1


def terms(text):
    """Returns the numbers of a sentence on demand: all replicas, demand and capacity, and the terms that add up."""
    replicas, rate, each = re.match(r"(\S+) replicas?: (\S+) requests/s of .* at (\S+)/s each,", text).groups()
    parts = re.findall(r"need ([0-9.]+)|([0-9.]+) for [0-9]+ waiting|margin ([0-9.]+)|([0-9]+) more ", text)
    need, *others = [float(next(filter(None, part))) for part in parts]
    return int(replicas), float(rate), float(each), need, others


@given(
    services(),
    st.lists(st.floats(0, 20), min_size=1, max_size=6),
    st.integers(0, 3000),
    st.integers(0, 9),
    st.integers(3, 60),
)
def test_the_sentence_adds_up(service, shares, waiting, credited, seconds):
    """Its first number is the sum of the need, waiting requests, the margin and replicas that stay."""
    fields, targets, bounds = service
    each = capacity_within(*fields.values(), targets, bounds, AutopilotPolicy().margins).rate
    memory, prompt = DemandMemory(), fields["workload"].prompt
    for step in range(24):
        share = shares[step * len(shares) // 24]
        seen = view(
            [share * each] * seconds,
            now=30.0 * step,
            waiting=waiting,
            waiting_tokens=waiting * prompt,
            ready=credited,
            **fields,
        )
        replicas, reason, memory, _ = decide_replicas(seen, targets, bounds, memory)
        said, rate, capacity, need, others = terms(sentence(reason))
        assert said == replicas
        assert round(need + sum(others), 1) == replicas, sentence(reason)
        assert abs(need - rate / capacity) <= 0.05 + 0.011 * need


def test_a_replica_is_sized_with_the_limits_that_tuning_solves_for_unless_they_are_out_of_reach():
    margins = AutopilotPolicy().margins
    tight = capacity_within(REPLICA, WORKLOAD, TARGETS, LIMITS, margins, 0.7)
    assert (tight.aim, tight.limits) == (
        TARGETS,
        best_limits(REPLICA, WORKLOAD, TARGETS.tightened(0.7), LIMITS, margins=margins),
    )
    assert tight.rate < EACH
    assert capacity_within(REPLICA, WORKLOAD, TARGETS, LIMITS, margins, 0.01).rate == EACH

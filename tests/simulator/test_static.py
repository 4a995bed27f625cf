from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_cost.model import StepWork
from inflight_simulator.arrivals import Arrival
from inflight_simulator.cost import LLAMA_8B_H100, UnitCost
from inflight_simulator.outcome import Phase
from inflight_simulator.static import simulate_static
from inflight_simulator.summary import summarize
from tests.simulator.support import scheduler_config, together


def machine(max_num_seqs=4, num_blocks=10_000, max_model_len=10_000):
    return replace(scheduler_config(max_num_seqs, num_blocks=num_blocks), max_model_len=max_model_len)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8))
def test_efficiency_of_one_batch_is_sum_of_lengths_over_slots_times_the_longest(lengths):
    summary = summarize(simulate_static(together(lengths), machine(len(lengths)), UnitCost()))
    assert summary.slot_efficiency == pytest.approx(sum(lengths) / (len(lengths) * max(lengths)))
    assert summary.steps == max(lengths)


def test_a_batch_takes_who_waits_when_the_one_before_is_done():
    arrivals = [Arrival(0, 10, 5), Arrival(1, 10, 2), Arrival(4.5, 10, 3), Arrival(5.5, 10, 1)]
    run = simulate_static(arrivals, machine(), UnitCost())
    assert [(each.admitted_s, each.finished_s) for each in run.outcomes] == [(0, 5), (5, 8), (5, 8), (8, 9)]
    assert [each.service_latency for each in run.outcomes] == [5, 3, 3, 1]


def test_an_idle_engine_starts_when_the_next_request_comes():
    run = simulate_static([Arrival(0, 10, 2), Arrival(100, 10, 2)], machine(), UnitCost())
    assert [each.admitted_s for each in run.outcomes] == [0, 100]
    assert summarize(run).makespan_s == 102


def test_a_batch_is_as_large_as_the_kv_cache_holds_all_of_its_requests():
    run = simulate_static(together([22] * 5, prompt_tokens=10), machine(num_blocks=5), UnitCost())
    assert [each.admitted_s for each in run.outcomes] == [0, 0, 22, 22, 44]
    assert max(run.series.kv_usage) == pytest.approx(4 / 5)


def test_finished_requests_are_computed_on_as_padding():
    cost = LLAMA_8B_H100
    run = simulate_static([Arrival(0, 100, 1), Arrival(0, 50, 3)], machine(), cost)
    prefill = cost.seconds(StepWork(0, 150, 0, 100 * 101 // 2 + 50 * 51 // 2, 0))
    second = cost.seconds(StepWork(2, 0, 152, 0, 0))
    third = cost.seconds(StepWork(2, 0, 154, 0, 0))
    assert summarize(run).makespan_s == pytest.approx(prefill + second + third)
    padding = [span for span in run.timeline if span.phase is Phase.PADDING]
    assert [(span.request_id, span.start_s) for span in padding] == [(0, pytest.approx(prefill))]
    assert {each.request_id: each.longest_gap for each in run.outcomes} == {
        0: 0.0,
        1: pytest.approx(max(second, third)),
    }


def test_requests_that_can_never_fit_are_refused():
    arrivals = [Arrival(0, 10, 5), Arrival(0, 100, 5), Arrival(0, 10, 6)]
    run = simulate_static(arrivals, machine(max_model_len=100), UnitCost())
    assert [refusal.request_id for refusal in run.refusals] == [1]
    assert [each.request_id for each in run.outcomes] == [0, 2]

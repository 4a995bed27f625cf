"""Demand: rates over pods that start, end and restart; sizes of requests; bounds of memory."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_cost.capacity import Replica, Workload
from inflight_cost.model import CostModel
from inflight_operator.decide.replicas.demand import MIN_STEPS, SPACING, SPAN, DemandHistory, DemandPoint, DemandView
from tests.base.page.pages import histogram
from tests.operator.observe.samples import make_sample

COST = CostModel(5.5e-3, 15e-6, 30e-6, 0.045e-6, 1.05e-9)


def counted(time, requests, **more):
    """Returns the sample of a pod after a number of requests of 100 + 20 tokens."""
    numbers = {"arrived": requests, "arrived_tokens": 100.0 * requests, "arrived_squares": 12_000.0 * requests}
    outputs = {"output_mean": 20.0, "output_square": 500.0}
    return make_sample(time, **{**numbers, "prefix_queries": 100 * requests, **outputs, **more})


def fed(rounds, ready_for=None, alive=()):
    """Returns a history of rounds: (time, samples by uid)."""
    history = DemandHistory()
    for time, samples in rounds:
        history = history.with_samples(samples, ready_for or {}, time, alive)
    return history


def view(history, now, **more):
    fields = {"calendar": now, "points": history.points, "workload": history.workload}
    loads = {"waiting": 0, "running": 0, "waiting_tokens": 0.0, "ready": 1}
    return DemandView(time=now, replica=history.replica, starting=(), start_up=60.0, **{**fields, **loads, **more})


@given(st.floats(0.5, 50), st.floats(1, 10), st.integers(1, 4))
def test_a_steady_rate_is_measured_whatever_the_interval_and_the_number_of_pods(rate, interval, pods):
    rounds = [
        (
            step * interval,
            {str(pod): counted(step * interval, 7 + rate / pods * step * interval) for pod in range(pods)},
        )
        for step in range(1, 30)
    ]
    assert view(fed(rounds), 29 * interval).rate(10 * interval) == pytest.approx(rate)


def test_a_pod_that_joins_and_one_that_leaves_move_load_and_change_no_sum():
    rounds, a, b = [], 0.0, 0.0
    for step in range(60):
        time = step * 3.0
        both = 60.0 <= time < 120.0
        a += 3.0 * (5 if both else 10)
        b += 3.0 * 5 * both
        samples = {"a": counted(time, a)} | ({"b": counted(time, b)} if both else {})
        rounds.append((time, samples))
    history = fed(rounds, {"b": 3.0})
    rates = [point.requests for point in history.points[1:]]
    assert rates[:19] == pytest.approx([10] * 19)
    assert rates[21:38] == pytest.approx([10] * 17)
    assert min(rates) >= 5  # for one round after a pod went
    assert view(history, 177.0).rate(180.0) == pytest.approx(10, rel=0.02)


def test_a_pod_that_was_there_before_the_operator_counts_from_its_second_sample():
    history = fed([(0.0, {"a": counted(0.0, 1_000_000)}), (3.0, {"a": counted(3.0, 1_000_030)})], {"a": 86_400.0})
    assert [point.requests for point in history.points] == [0.0, 10.0]


def test_a_restarted_engine_counts_from_zero():
    rounds = [(0.0, {"a": counted(0.0, 500)}), (3.0, {"a": counted(3.0, 530)}), (6.0, {"a": counted(6.0, 30)})]
    assert [point.requests for point in fed(rounds).points] == [0.0, 10.0, 10.0]


def test_requests_that_were_refused_are_demand_of_the_same_size():
    rounds = [(3.0 * step, {"a": counted(3.0 * step, 1 + 15 * step, refused=45.0 * step)}) for step in range(10)]
    history = fed(rounds)
    assert history.points[-1].requests == pytest.approx(20)
    assert history.workload.prompt == pytest.approx(100)
    assert history.workload.prompt_square == pytest.approx(12_000)
    only = history.with_samples({"a": counted(30.0, 136, refused=405.0 + 60)}, {}, 30.0)
    assert only.points[-1].requests == pytest.approx(20)


def test_rounds_between_two_scrapes_hold_the_rate():
    history = fed([(0.0, {"a": counted(0.0, 0.1)}), (10.0, {"a": counted(10.0, 100.1)})])
    for time in (12.6, 15.2, 17.8):
        history = history.with_samples({"a": counted(10.0, 100.1)}, {}, time)
    assert [point.requests for point in history.points] == pytest.approx([0, 10, 10, 10, 10])


def test_what_requests_are_like():
    rounds = [
        (step * 3.0, {"a": counted(step * 3.0, 1 + 30 * step, prefix_hits=25 * (1 + 30 * step))}) for step in range(10)
    ]
    assert fed(rounds).workload == Workload(100.0, 75.0, 12_000.0, 20.0, 500.0)


def test_sizes_are_kept_while_no_request_comes_and_while_they_stay_much_the_same():
    history = fed([(step * 3.0, {"a": counted(step * 3.0, 1 + 30 * step)}) for step in range(10)])
    known = history.workload
    idle = history
    for step in range(200):
        idle = idle.with_samples({"a": counted(30 + step * 3.0, 271)}, {}, 30 + step * 3.0)
    assert idle.workload is known
    same = history.with_samples({"a": counted(30.0, 301, output_mean=20.4, output_square=510.0)}, {}, 30.0)
    assert same.workload is known
    other = history.with_samples({"a": counted(30.0, 301, output_mean=30.0)}, {}, 30.0)
    assert other.workload.output == 30.0


def test_of_an_engine_that_does_not_tell_what_arrived_first_tokens_and_the_queue_do():
    """vLLM: 4 first tokens a second, and 6 more requests each second in the queue."""
    rounds = []
    for step in range(10):
        tokens = {"prompt_tokens": 300 * 4 * 3.0 * step, "generation_tokens": 50 * 4 * 3.0 * step}
        first = histogram(*[0.05] * (12 * step))
        rounds.append((step * 3.0, {"a": make_sample(step * 3.0, waiting=18 * step, ttft=first, **tokens)}))
    history = fed(rounds)
    assert history.points[-1].requests == pytest.approx(10)
    assert history.workload == Workload(300.0, 300.0, 180_000.0, 50.0, 5_000.0)


def priced(cost, steps=1000.0, error=0.05, kv=400_000):
    return counted(0.0, 1, cost=cost, cost_steps=steps, cost_error=error, kv_tokens=kv)


def slower(factor):
    return CostModel(*(factor * seconds for seconds in (5.5e-3, 15e-6, 30e-6, 0.045e-6, 1.05e-9)))


def test_the_cost_model_is_that_of_the_pod_in_the_middle():
    pods = {str(factor): priced(slower(factor)) for factor in (1, 50, 1.2)}
    assert fed([(0.0, pods)]).replica == Replica(slower(1.2), 400_000.0)


def test_a_cost_model_of_few_steps_or_of_large_error_is_not_believed():
    assert fed([(0.0, {"a": priced(COST, steps=MIN_STEPS - 1)})]).replica is None
    assert fed([(0.0, {"a": priced(COST, error=0.5)})]).replica is None
    pods = {"a": priced(slower(9), error=0.9), "b": priced(COST), "c": priced(slower(9), steps=3)}
    assert fed([(0.0, pods)]).replica.cost == COST
    assert fed([(0.0, {"a": priced(COST, kv=None)})]).replica is None


def test_a_cost_model_stays_while_no_pod_reports_one_and_while_the_new_one_says_much_the_same():
    history = fed([(0.0, {"a": priced(COST)})])
    known = history.replica
    assert history.with_samples({}, {}, 3.0).replica is known
    assert history.with_samples({"a": counted(3.0, 2)}, {}, 3.0).replica is known
    assert history.with_samples({"a": replace(priced(slower(1.02)), time=3.0)}, {}, 3.0).replica is known
    assert history.with_samples({"a": replace(priced(slower(1.1)), time=3.0)}, {}, 3.0).replica.cost == slower(1.1)


def test_a_history_is_bounded():
    history = DemandHistory()
    for step in range(3000):
        history = history.with_samples({"a": counted(step * 0.7, step)}, {}, step * 0.7)
    assert len(history.points) <= SPAN / SPACING + 1
    assert set(history.pods) == {"a"}


def test_a_gap_in_the_metrics_is_no_time_of_the_rate_after_it():
    rounds = [(time, {"a": counted(time, 1 + 10 * time)}) for time in (0.0, 3.0, 6.0)]
    rounds += [(100.0, {}), (200.0, {"a": counted(200.0, 62)}), (203.0, {"a": counted(203.0, 62 + 3)})]
    history = fed(rounds)
    assert view(history, 203.0).rate(200.0) < 10
    assert history.points[-1].requests == pytest.approx(1)


def points(rates, width=3.0):
    return tuple(DemandPoint(index * width, rate) for index, rate in enumerate(rates))


def test_dispersion_is_one_for_a_short_series_and_none_for_an_even_one():
    one = view(DemandHistory(), 300.0)
    assert one.dispersion(300.0, 15.0) == 1.0
    assert replace(one, points=points([10] * 100)).dispersion(300.0, 15.0) == 0.0
    assert replace(one, points=points([10 + index / 10 for index in range(100)])).dispersion(300.0, 15.0) < 0.2


@pytest.mark.parametrize("rate", [5.0, 20.0, 80.0])
@pytest.mark.parametrize("seed", range(4))
def test_dispersion_of_a_poisson_process_is_about_one_and_of_batches_their_size(seed, rate):
    random = Random(seed)

    def poisson(mean):
        count, time = 0, random.expovariate(mean)
        while time < 1:
            count, time = count + 1, time + random.expovariate(mean)
        return count

    singles = view(DemandHistory(), 897.0, points=points([poisson(rate * 3) / 3 for _ in range(300)]))
    assert 0.4 < singles.dispersion(900.0, 3.0) < 2.0
    batches = view(DemandHistory(), 897.0, points=points([8 * poisson(rate * 3 / 8) / 3 for _ in range(300)]))
    assert batches.dispersion(900.0, 3.0) > 4.0


def test_requests_of_a_gap_in_the_metrics_are_counted_once_it_is_over():
    rounds = [(time, {"a": counted(time, 10.0 * time)}) for time in (3.0 * step for step in range(1, 31))]
    rounds += [(time, {}) for time in (93.0, 96.0, 99.0, 102.0, 105.0, 108.0, 111.0)]
    rounds += [(114.0, {"a": counted(114.0, 1140.0)}), (117.0, {"a": counted(117.0, 1170.0)})]
    history = fed(rounds, alive={"a"})
    assert view(history, 117.0).rate(15.0) == pytest.approx(10.0)
    assert view(history, 117.0).rate(60.0) == pytest.approx(10.0)


def test_a_pod_that_is_ready_again_has_not_served_all_of_its_requests_since():
    history = fed([(3.0 * step, {"a": counted(3.0 * step, 90_000 + 30.0 * step)}) for step in range(20)], alive={"a"})
    for time in (60.0, 63.0, 66.0):  # not ready
        history = history.with_samples({}, {}, time, {"a"})
    history = history.with_samples({"a": counted(69.0, 90_690.0)}, {"a": 2.0}, 69.0, {"a"})
    assert view(history, 69.0).rate(15.0) == pytest.approx(10.0)


def test_a_pod_that_is_gone_is_forgotten():
    history = fed([(3.0, {"a": counted(3.0, 1), "b": counted(3.0, 1)})], alive={"a", "b"})
    history = history.with_samples({"a": counted(6.0, 2)}, {}, 6.0, {"a"})
    assert set(history.pods) == {"a"}


def test_a_pod_that_was_not_ready_when_the_operator_began_has_not_served_all_of_its_requests_since():
    both = {"a", "b"}
    history = fed([(3.0 * step, {"a": counted(3.0 * step, 30.0 * step)}) for step in range(1, 20)], alive=both)
    again = {"a": counted(60.0, 600.0), "b": counted(60.0, 90_000.0)}
    history = history.with_samples(again, {"b": 2.0}, 60.0, both)
    assert view(history, 60.0).rate(15.0) == pytest.approx(10.0)

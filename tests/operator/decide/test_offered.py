"""Demand at the gateway: rates over its pods, sizes in the engines' tokens, and what goes around it."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_operator.decide.replicas.demand import DemandHistory
from inflight_operator.decide.replicas.offered import MEAN_SECONDS, Engines, Offered
from inflight_operator.observe.gateway_view import GatewayDemand
from tests.operator.decide.test_demand import counted, view


def asked(arrived, sent=None, *, prompt=50, output=20, sent_prompt=None, sent_output=None, refused=0):
    """Returns counters after requests of `prompt` estimated and `output` expected tokens."""
    sent = arrived if sent is None else sent
    return GatewayDemand(
        *(arrived, prompt * arrived, prompt**2 * arrived, output * arrived, refused, sent),
        (prompt if sent_prompt is None else sent_prompt) * sent,
        (output if sent_output is None else sent_output) * sent,
    )


def fed(rounds, history=None):
    """Returns a history of rounds: (time, requests that engines got, counters by gateway pod)."""
    history = history or DemandHistory()
    for time, requests, gateway in rounds:
        samples = {} if requests is None else {"a": counted(time, 1 + requests)}
        history = history.with_samples(samples, {}, time, {"a"}, gateway)
    return history


def steady(arriving, serving, count, begin=0, **sizes):
    """Rounds of 3 s, with so many requests a second at the gateway and at the engines."""
    return [
        (3.0 * step, 3.0 * step * serving, {"g": asked(3 * step * arriving, 3 * step * serving, **sizes)})
        for step in range(begin, begin + count)
    ]


def test_held_and_refused_requests_are_demand_at_once_though_no_engine_sees_them():
    calm = steady(10, 10, 40)
    jump = [
        (120.0 + 3 * step, 1200.0 + 30 * step, {"g": asked(1200 + 72 * step, 1200 + 30 * step, refused=9 * step)})
        for step in range(6)
    ]
    history = fed(calm + jump)
    assert view(history, 135.0).rate(15.0) == pytest.approx(24.0)
    assert history.workload.prompt == pytest.approx(100.0)
    assert history.offered.refused > 0


def test_tokens_that_a_service_is_charged_by_are_those_at_engines_not_those_that_wait():
    history = fed(steady(20, 10, 80))
    assert history.offered.served == pytest.approx(1000.0, rel=0.01)
    assert history.tokens_per_s == pytest.approx(1000.0, rel=0.01)


def test_prompts_are_in_tokens_of_the_engines_whatever_the_gateway_estimates():
    history = fed(steady(10, 10, 40, prompt=37))
    assert history.workload.prompt == pytest.approx(100.0)
    assert history.offered.unit == pytest.approx(100 / 37, rel=0.01)


def test_sizes_are_those_of_arriving_requests_where_engines_got_others():
    """Half of what arrives is of a tenant with prompts and outputs of four times the size, which is held."""
    history = fed(steady(20, 10, 80, prompt=125, output=50, sent_prompt=50, sent_output=20))
    assert history.workload.prompt == pytest.approx(250.0, rel=0.02)
    assert history.workload.output == pytest.approx(50.0, rel=0.02)
    assert history.workload.output_square == pytest.approx(500 * 2.5**2, rel=0.04)


def test_what_engines_get_around_the_gateway_is_demand_too():
    history = fed([(3.0 * step, 45.0 * step, {"g": asked(30 * step)}) for step in range(100)])
    assert history.points[-1].requests == pytest.approx(15.0, rel=0.02)


def test_scrapes_that_lag_behind_are_hardly_requests_around_the_gateway():
    """A sample says what was 3 s before; the rate jumps to 40 a second, and falls to 10 again."""
    arrived, rounds = [0], []
    for step in range(1, 90):
        arrived.append(arrived[-1] + 3 * (40 if 50 < step <= 70 else 10))
        rounds.append((3.0 * step, float(arrived[-2]), {"g": asked(arrived[-1])}))
    requests = [point.requests for point in fed(rounds).points[2:]]
    assert requests[:47] == pytest.approx([10.0] * 47, rel=0.01)
    assert requests[50:67] == pytest.approx([40.0] * 17, rel=0.01)
    assert requests[69:] == pytest.approx([10.0] * len(requests[69:]), rel=0.3)
    assert requests[-1] == pytest.approx(10.0, rel=0.1)


def switching(direct, gateway):
    """Returns the rate of each point: 10 requests a second that come directly where `direct`, else by the gateway."""
    engines, counter, rounds = 0.0, 0, []
    for step in range(1, direct + gateway):
        by_gateway = step > direct
        engines, counter = engines + 30.0, counter + 30 * by_gateway
        rounds.append((3.0 * step, engines, {"g": asked(counter)}))
    return fed(rounds)


def test_clients_that_move_to_the_gateway_count_twice_for_half_a_minute_at_most():
    history = switching(100, 30)
    assert sum(point.requests - 10.0 for point in history.points[-29:]) * 3.0 <= 10.0 * 30.0 * 1.1
    assert history.points[-1].requests == pytest.approx(10.0, rel=0.1)


def test_the_unit_of_tokens_outlasts_a_sleep_so_that_requests_that_wake_a_service_have_their_size():
    history = fed(steady(10, 10, 40, prompt=10))
    awake = {"g": asked(10 * 120 - 30, prompt=10)}
    for step in range(40, 1500):
        history = history.with_samples({}, {}, 3.0 * step, (), awake)
    woken = {"g": asked(10 * 120 + 270, sent=1170, prompt=10)}
    history = history.with_samples({}, {}, 4500.0, (), woken)
    assert history.points[-1].tokens == pytest.approx(100.0 * history.points[-1].requests)


def test_a_gateway_whose_pods_are_all_new_leaves_no_gap_in_the_demand():
    history = fed([(3.0 * step, 30.0 * step, {"old": asked(30 * step)}) for step in range(1, 40)])
    history = fed([(3.0 * step, 30.0 * step, {"new": asked(30 * (step - 40))}) for step in range(40, 60)], history)
    assert [point.requests for point in history.points[1:]] == pytest.approx([10.0] * 58, rel=0.01)


def test_a_gateway_that_is_switched_off_leaves_no_mean_behind():
    history = fed(steady(10, 10, 80))
    assert history.tokens_per_s == pytest.approx(1000.0, rel=0.05)
    history = fed([(240.0 + 3 * step, 2400.0 + 3 * step, None) for step in range(220)], history)
    assert history.tokens_per_s == pytest.approx(100.0, rel=0.05)
    assert history.offered.around == history.offered.refused == 0.0


@pytest.mark.parametrize("gateway", [None, {}])
def test_without_a_gateway_that_counts_demand_is_that_of_the_engines(gateway):
    history = fed([(3.0 * step, 30.0 * step, gateway) for step in range(10)])
    assert history.points[-1].requests == pytest.approx(10.0)
    assert history.offered == Offered()


def test_demand_goes_on_while_no_engine_is_measured():
    rounds = steady(10, 10, 40)
    rounds += [(120.0 + 3 * step, None, {"g": asked(1200 + 72 * step, 1200)}) for step in range(6)]
    history = fed(rounds)
    assert view(history, 135.0).rate(15.0) == pytest.approx(24.0)
    assert history.workload.prompt == pytest.approx(100.0)


def test_requests_of_a_gap_are_counted_once_it_is_over():
    rounds = steady(10, 10, 40)
    rounds += [(120.0 + 3 * step, 1200.0 + 30 * step, None) for step in range(10)]
    rounds += steady(10, 10, 10, begin=50)
    assert [point.requests for point in fed(rounds).points[1:]] == pytest.approx([10.0] * 59, rel=0.01)


def pod_rates(steps):
    """Returns the rates of requests after each step: counters by pod, 3 s apart."""
    history, rates = DemandHistory(), []
    for number, gateway in enumerate(steps):
        history = history.with_samples({}, {}, 3.0 * number, (), gateway)
        rates.append(history.points[-1].requests if history.points else 0.0)
    return rates


def test_a_service_that_moves_to_another_gateway_pod_keeps_its_rate():
    steps = [{"a": asked(30 * step), "b": asked(0)} for step in range(10)]
    steps += [{"a": asked(270), "b": asked(30 * step)} for step in range(1, 10)]
    assert pod_rates(steps)[1:] == pytest.approx([10.0] * 18)


def test_a_gateway_pod_that_is_added_brings_only_what_it_counts_from_then_on():
    steps = [{"a": asked(30 * step)} for step in range(10)]
    steps += [{"a": asked(30 * step), "new": asked(5000)} for step in range(10, 20)]
    assert pod_rates(steps)[1:] == pytest.approx([10.0] * 19)


def test_a_restarted_gateway_pod_counts_from_zero():
    steps = [{"a": asked(500 + 30 * step)} for step in range(10)] + [{"a": asked(12)}, {"a": asked(42)}]
    assert pod_rates(steps)[1:] == pytest.approx([10.0] * 9 + [4.0, 10.0])


def test_gateway_pods_that_are_gone_are_forgotten():
    history = fed([(0.0, 0.0, {"old": asked(1), "g": asked(1)}), (3.0, 1.0, {"g": asked(1)})])
    assert set(history.offered.pods) == {"old", "g"}
    later = fed([(MEAN_SECONDS + 6.0, 2.0, {"g": asked(1)})], history)
    assert set(later.offered.pods) == {"g"}


LIVES = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 200), st.booleans()), max_size=3), max_size=30
)


@given(LIVES)
def test_pods_that_come_go_and_restart_bring_no_negative_rate_and_no_more_requests_than_there_were(lives):
    """Each step has the requests of each pod that is there, and whether it was restarted before them."""
    counters, steps, total = {}, [], 0
    for life in lives:
        for pod, (requests, restarted) in life.items():
            counters[pod] = (0 if restarted else counters.get(pod, 0)) + requests
            total += requests
        steps.append({pod: asked(counters[pod]) for pod in life})
    rates = pod_rates(steps)
    assert min(rates, default=0) >= 0
    history = DemandHistory()
    for number, gateway in enumerate(steps):
        history = history.with_samples({}, {}, 3.0 * number, (), gateway)
    points = history.points
    assert sum(3.0 * point.requests for point in points) <= total + 1e-6


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=2, max_size=40))
def test_the_sum_over_all_points_is_what_arrived_however_pods_share_it(shares):
    steps, a, b = [], 0, 0
    for one, other in shares:
        a, b = a + one, b + other
        steps.append({"a": asked(a), "b": asked(b)})
    first, arrived = shares[0], a + b
    assert 3.0 * sum(pod_rates(steps)) == pytest.approx(arrived - sum(first))


@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 500), st.integers(0, 100), st.floats(0, 1e3), st.floats(0, 1e5)),
        max_size=30,
    )
)
def test_demand_is_a_number_whatever_engines_and_gateway_count(rounds):
    offered, arrived, sent, refused = Offered(), 0, 0, 0
    for number, (more, passed, failed, requests, tokens) in enumerate(rounds):
        arrived, sent, refused = arrived + more, sent + passed, refused + failed
        counters = {"g": asked(arrived, sent, refused=refused)}
        offered = offered.with_counters(counters, Engines(requests, tokens, tokens * 10), 3.0 * number, 3.0)
        numbers = (*offered.latest, offered.around, offered.refused, offered.served, offered.unit, offered.output_ratio)
        assert all(math.isfinite(one) and one >= 0 for one in numbers)
        assert offered.unit > 0
        assert offered.output_ratio > 0


def test_a_history_of_the_gateway_is_bounded():
    history = DemandHistory()
    for step in range(1000):
        history = history.with_samples({}, {}, 3.0 * step, (), {f"g{step // 100}": asked(step)})
    assert len(history.offered.pods) <= 2
    assert replace(history.offered, pods={}).seconds <= MEAN_SECONDS + 3

"""Pods that come and go, what they cost, and where requests go meanwhile."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from inflight_settings.limits import Limits
from inflight_simulator.fleet.config import FleetConfig, ReplicaModel, RequestTargets, undivided
from inflight_simulator.fleet.outcome import FleetRun, ReplicaCount
from inflight_simulator.fleet.replicas.replica import NEVER
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.routing import Router
from inflight_simulator.fleet.run import run_fleet, simulate_fleet, ttft_targets
from inflight_simulator.fleet.view import Fixed
from tests.simulator.fleet.test_naive import random_requests

QUIET = FleetConfig(replica=ReplicaModel(noise=0.0), start_up=undivided(5.0))


def steady(count, every=0.1, prompt=50, output=10):
    return Requests(np.arange(count) * every, np.full(count, prompt), np.full(count, output))


@dataclass
class Script:
    """Orders replicas by the time; keeps what it saw."""

    course: dict
    interval_s: float = 1.0
    seen: list = field(default_factory=list)

    def replicas(self, view):
        self.seen.append(view)
        return self.course[max(time for time in self.course if time <= view.now)]


def counts_at(run, time_s):
    return [row for row in run.replicas if row.time_s <= time_s][-1]


def test_replica_hours_count_starting_and_draining_pods_up_to_the_last_arrival():
    requests = steady(301)  # 30 s
    run = simulate_fleet(requests, QUIET, Script({0: 1, 10: 3, 20: 1}))
    # One pod all the time, two more from 10 s on, of which 5 s to start; at 20 s both are empty or nearly so.
    assert run.replica_hours * 3600 == pytest.approx(30 + 2 * 10, abs=0.2)
    assert counts_at(run, 12)[1:] == (3, 1, 3)
    assert counts_at(run, 16)[1:] == (3, 3, 3)
    assert counts_at(run, 29)[1:] == (1, 1, 1)
    assert run.reversals == 1


def test_a_pod_that_drains_ends_its_requests_and_counts_until_then():
    # Long outputs: of the two pods' requests those of the second are under way when it is removed.
    requests = Requests(np.array([0.0, 0.1, 20.0]), np.array([100, 100, 10]), np.array([1500, 1500, 10]))
    config = replace(QUIET, initial_replicas=2)
    run = simulate_fleet(requests, config, Script({0: 2, 1: 1}))
    alone = simulate_fleet(requests, config, Fixed(2))
    np.testing.assert_array_equal(run.tpot, alone.tpot)
    drained = 0.1 + run.ttft[1] + run.tpot[1] * 1499
    assert drained > 5
    assert run.replica_hours * 3600 == pytest.approx(20 + drained)
    assert counts_at(run, 3)[1:] == (1, 1, 2)
    assert counts_at(run, 19)[1:] == (1, 1, 1)


@pytest.mark.parametrize("outputs", [(1100, 1450), (1450, 1100)])
def test_pods_that_drain_between_two_looks_are_counted_in_the_order_in_which_they_end(outputs):
    requests = Requests(np.array([0.0, 0.01, 0.02, 20.0]), np.full(4, 100), np.array([10, *outputs, 10]))
    config = replace(QUIET, initial_replicas=3)
    run = simulate_fleet(requests, config, Script({0: 1}, interval_s=5.0))
    times = [row.time_s for row in run.replicas]
    assert times == sorted(times)
    assert [row.existing for row in run.replicas] == [3, 3, 2, 1]
    assert run.replica_hours * 3600 == pytest.approx(20 + sum(times[-2:]))


def test_a_pod_whose_last_request_is_refused_counts_until_then():
    # The last request of the second pod is longer than the KV cache, which shows after the step under way.
    requests = Requests(np.array([0.0, 0.01, 0.02, 0.03, 5.0]), np.array([7000, 7000, 10, 9000, 10]), np.ones(5, int))
    model = ReplicaModel(noise=0.0, kv_tokens=8000)
    config = replace(QUIET, replica=model, limits=Limits(256, 8192), initial_replicas=2)
    run = simulate_fleet(requests, config, Script({0: 1}, interval_s=0.1))
    assert run.refused == 1
    assert run.replica_hours * 3600 == pytest.approx(5 + 0.01 + run.ttft[1])


def test_no_request_goes_to_a_pod_that_starts_or_drains():
    requests = random_requests(600, 30, 3)
    config = replace(QUIET, initial_replicas=2, start_up=undivided(4.0))
    seen = {}

    class Watch:
        interval_s = 0.5

        def __init__(self):
            self.script = {0: 2, 3: 5, 10: 2, 12: 4}

        def update(self, fleet, now):
            fleet.order(self.script[max(time for time in self.script if time <= now)], now)
            seen["fleet"] = fleet

    run_fleet(requests, config, [Watch()])
    fleet = seen["fleet"]
    assert len(fleet.pods) > 5
    for number, place in enumerate(fleet.states.pod):
        pod, came = fleet.pods[place], requests.arrival_s[number]
        assert pod.starts_s <= came
        assert came <= pod.ended_s


def test_pods_that_start_go_first_then_the_newest():
    requests = steady(300)
    script = Script({0: 1, 2: 3, 10: 4, 11: 2})
    simulate_fleet(requests, QUIET, script)
    assert [pod.name for pod in script.seen[10].pods] == ["pod-0", "pod-1", "pod-2", "pod-3"]
    assert [pod.name for pod in script.seen[-1].pods] == ["pod-0", "pod-1"]


@pytest.mark.parametrize("routing", ["round-robin", "least-requests", "least-work"])
def test_every_request_ends_once_whatever_pods_do(routing):
    requests = random_requests(800, 40, 11, output=40)
    config = FleetConfig(routing=routing, start_up=undivided(2.0), initial_replicas=2, max_replicas=9)
    random = np.random.default_rng(5)
    course = {float(time): int(random.integers(1, 9)) for time in range(0, 20)}
    run = simulate_fleet(requests, config, Script({0: 2, **course}))
    assert not np.isnan(run.ttft).any()
    assert (run.ttft > 0).all()
    assert (run.tpot[requests.output_tokens > 1] > 0).all()


def test_orders_are_kept_within_the_bounds():
    config = replace(QUIET, min_replicas=2, initial_replicas=2, max_replicas=4)
    run = simulate_fleet(steady(200), config, Script({0: 0, 5: 99, 12: -3}))
    assert {row.ordered for row in run.replicas} == {2, 4}


def test_a_request_longer_than_the_kv_cache_is_refused_and_keeps_no_target():
    requests = Requests(np.array([0.0, 1.0]), np.array([5000, 10]), np.array([5, 5]))
    run = simulate_fleet(requests, FleetConfig(replica=ReplicaModel(kv_tokens=1600)), Fixed(1))
    assert run.refused == 1
    assert math.isnan(run.ttft[0])
    assert run.kept.tolist() == [False, True]


def test_routers_break_ties_by_the_lowest_place():
    router = Router("least-requests")
    for place in (3, 1, 5):
        router.open(place)
    assert router.choose() == 1
    router.update(1, 2)
    assert router.choose() == 3
    router.close(3)
    assert router.choose() == 5
    router.update(5, 2)
    assert router.choose() == 1


def test_least_work_goes_by_pending_tokens_before_outstanding_requests():
    router = Router("least-work")
    for place in range(3):
        router.open(place)
    router.update(0, 1, 500)
    router.update(1, 9, 100)
    router.update(2, 3, 100)
    assert router.choose() == 2


def test_round_robin_goes_around_the_open_places():
    router = Router("round-robin")
    for place in range(4):
        router.open(place)
    router.close(2)
    assert [router.choose() for _ in range(5)] == [0, 1, 3, 0, 1]


def test_without_an_open_place_there_is_no_choice():
    with pytest.raises(LookupError):
        Router("least-requests").choose()


def finished(kept, every=1.0):
    count = len(kept)
    tpot = np.where(kept, 0.01, 1.0)
    ones = np.ones(count)
    rows = (ReplicaCount(0, 1, 1, 1),)
    return FleetRun(np.arange(count) * every, ones * 0.1, tpot, ones, ones * 0.05, rows, 1.0)


def test_the_longest_time_out_of_target_is_a_run_of_windows():
    kept = np.ones(100, bool)
    kept[[23, 31, 45, 72]] = False
    assert finished(kept).longest_out_of_target_s == 30  # 20 to 50 s
    assert finished(np.ones(50, bool)).longest_out_of_target_s == 0
    assert finished(np.ones(50, bool)).attainment == 1.0


def test_windows_without_arrivals_lengthen_a_run_only_between_two_that_miss():
    kept = np.array([False, False, True])
    assert finished(kept, every=35.0).longest_out_of_target_s == 40  # 0 to 10 and 30 to 40 s


def test_reversals_are_changes_of_direction():
    def turns(*ordered):
        rows = tuple(ReplicaCount(float(time), count, 1, 1) for time, count in enumerate(ordered))
        return replace(finished(np.ones(1, bool)), replicas=rows).reversals

    assert turns(1, 2, 2, 5, 3, 1, 4) == 2
    assert turns(3, 3, 3) == 0
    assert turns(1, 2, 3) == 0


def test_long_prompts_have_a_longer_target_and_the_prefill_rule_a_longer_one_still():
    requests = Requests(np.arange(3.0), np.array([4000, 4001, 40_000]), np.ones(3, int))
    targets, cost = RequestTargets(), ReplicaModel().cost
    assert ttft_targets(requests, targets, cost).tolist() == [0.5, 1.0, 1.0]
    with_prefill = ttft_targets(requests, replace(targets, prefill_factor=2.0), cost)
    alone = 5.5e-3 + 30e-6 * 40_000 + 1.05e-9 * 40_000 * 40_001 / 2
    assert with_prefill[2] == pytest.approx(0.5 + 2 * alone)
    assert with_prefill[1] == 1.0


def test_nothing_is_left_when_all_have_ended():
    seen = []

    class Keep:
        interval_s = 1.0

        def update(self, fleet, now):
            seen.append(fleet)

    run_fleet(random_requests(200, 20, 8), FleetConfig(initial_replicas=3), [Keep()])
    for pod in seen[-1].pods:
        assert pod.replica.outstanding == 0
        assert pod.replica.event == NEVER
        assert pod.replica.scheduler.kv_usage == 0

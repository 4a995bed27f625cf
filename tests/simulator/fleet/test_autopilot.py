"""The operator's decisions on a simulated fleet."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from inflight_operator.decide.replicas.start_up import Elsewhere, Phases
from inflight_operator.decide.tuning.types import Slo
from inflight_operator.reconcile.policy import policy_of
from inflight_operator.reconcile.reconciler import ReconcilerSettings
from inflight_operator.render.plan import Settings
from inflight_settings.limits import Limits
from inflight_simulator.fleet import autopilot
from inflight_simulator.fleet.commands.named import simulate_named
from inflight_simulator.fleet.config import FleetConfig, GatewayModel, RequestTargets, undivided
from inflight_simulator.fleet.replicas.replica import scheduler_config
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import run_fleet
from tests.simulator.fleet.test_naive import random_requests

CONFIG = FleetConfig(start_up=undivided(20.0), max_replicas=6)
LOAD = random_requests(3000, 30, 1, prompt=1000, output=200)  # More than one replica carries.


def test_its_times_are_those_of_the_operator():
    every = ReconcilerSettings()
    assert every.interval == autopilot.INTERVAL_S
    assert every.stale_after == autopilot._STALE_AFTER_S
    assert every.span == autopilot._SPAN_S


def test_it_orders_replicas_within_the_bounds_and_says_why():
    run = simulate_named("autopilot", LOAD, CONFIG)
    ordered = [row.ordered for row in run.replicas]
    assert max(ordered) > 1
    assert max(ordered) <= 6
    assert len(run.decisions) > 0
    assert "replicas 1 -> " in run.decisions[0]
    assert not np.isnan(run.ttft).any()
    again = simulate_named("autopilot", LOAD, CONFIG)
    np.testing.assert_array_equal(run.ttft, again.ttft)
    assert run.decisions == again.decisions


def test_pods_that_were_there_before_taught_it_the_start_up_time():
    operator = autopilot.Autopilot(CONFIG)
    run_fleet(LOAD, CONFIG, [operator])
    lead = operator._memory.startups.lead_time([], Elsewhere())
    assert lead.phases.total == 20.0


def test_it_learns_each_phase_of_the_start_ups_that_it_orders():
    phases = Phases(scheduled=0.5, image=4.0, weights=8.0, engine=6.0, endpoints=1.5)
    config = replace(CONFIG, start_up=phases)
    operator = autopilot.Autopilot(config)
    run = run_fleet(LOAD, config, [operator])
    assert max(row.ready for row in run.replicas) > 1
    lead = operator._memory.startups.lead_time(["node"], Elsewhere())
    assert (lead.basis, lead.starts) == ("Node", len(operator._memory.startups.starts))
    assert lead.phases[:4] == pytest.approx(phases[:4], abs=1e-5)
    assert 0.0 <= lead.phases.endpoints <= phases.endpoints + autopilot.INTERVAL_S


def test_a_start_up_of_phases_is_one_of_their_sum_until_the_last_of_them():
    """Limits that a pod gets when it is Ready, and metrics of pods that are Ready without an endpoint, aside."""
    whole = replace(CONFIG, start_up=undivided(12.0))
    parts = replace(CONFIG, start_up=Phases(scheduled=1.0, image=2.0, weights=5.0, engine=4.0, endpoints=0.0))
    one, other = (simulate_named("fixed:3", LOAD, config) for config in (whole, parts))
    np.testing.assert_array_equal(one.ttft, other.ttft)
    ordered = [[row.ordered for row in simulate_named("autopilot", LOAD, config).replicas] for config in (whole, parts)]
    assert ordered[0] == ordered[1]


def test_its_service_is_told_what_prompts_add_to_their_target_as_its_engines_are():
    def slo(config):
        return policy_of(autopilot.service_of(config), Settings(engine_image="engine")).slo

    assert slo(CONFIG) == Slo(0.5, 0.05)
    prefill = replace(CONFIG, targets=RequestTargets(prefill_factor=2.0))
    assert slo(prefill).targets.ttft_of(10_000) == pytest.approx(1.1)
    assert prefill.service_targets.ttft_of(10_000) == pytest.approx(1.1)
    assert scheduler_config(prefill, 1000).ttft_per_token == pytest.approx(60e-6)


def test_with_another_scaler_only_its_limits_count():
    config = replace(CONFIG, tuning=True, limits=Limits(4, 512))
    run = simulate_named("fixed:3", LOAD, config)
    assert {row.ordered for row in run.replicas} == {3}
    assert run.decisions
    assert all("replicas" not in each.split(":")[0] for each in run.decisions)
    fixed = simulate_named("fixed:3", LOAD, replace(config, tuning=False))
    assert not np.array_equal(run.ttft, fixed.ttft)


@pytest.mark.parametrize("tuning", [True, False])
def test_pods_run_with_the_limits_in_force(tuning):
    config = replace(CONFIG, tuning=tuning, limits=Limits(4, 512))
    operator, seen = autopilot.Autopilot(config), []

    class Watch:
        interval_s = autopilot.INTERVAL_S

        def update(self, fleet, now):
            operator.update(fleet, now)
            for pod in fleet.live:
                if pod.routable:
                    seen.append((pod.replica.scheduler.limits, fleet.first_limits.limits))

    run_fleet(LOAD, config, [Watch()])
    assert all(one == other for one, other in seen)
    assert len({one for one, _ in seen}) > 1 if tuning else {one for one, _ in seen} == {Limits(4, 512)}


def jump(before, after, at, end):
    """Requests at a mean rate that jumps."""
    random = np.random.default_rng(0)
    times = np.append(random.uniform(0, at, before * at), random.uniform(at, end, after * (end - at)))
    return Requests(np.sort(times), np.full(len(times), 3000), np.full(len(times), 100))


@pytest.mark.parametrize("pods", [1, 3])
def test_behind_the_gateway_it_orders_as_much_and_as_soon_as_where_engines_see_all_arrivals(pods):
    config = replace(CONFIG, initial_replicas=2, max_replicas=30, policy="deadline", gateway=GatewayModel(pods=pods))
    requests = jump(10, 40, 60, 100)
    found = {}
    for routing in ("least-work", "gateway"):
        run = simulate_named("autopilot", requests, replace(config, routing=routing))
        found[routing] = max(row.ordered for row in run.replicas if row.time_s < 75)
    assert found["least-work"] >= 6
    assert abs(found["gateway"] - found["least-work"]) <= 1


@dataclass
class Operator:
    """The operator, whose snapshots are kept."""

    operator: autopilot.Autopilot
    seen: list = field(default_factory=list)
    interval_s: float = autopilot.INTERVAL_S

    def update(self, fleet, now):
        self.seen.append((self.operator._snapshot(fleet, now).gateway, fleet.gateway.num_held))
        self.operator.update(fleet, now)


def test_it_reads_what_all_pods_of_the_gateway_report():
    config = replace(CONFIG, routing="gateway", max_replicas=1, gateway=GatewayModel({"hold": {"maxRequests": 40}}, 2))
    watch = Operator(autopilot.Autopilot(config))
    run = run_fleet(jump(20, 20, 20, 40), config, [watch])
    assert all(view.known and view.counts and view.pods == 2 for view, _ in watch.seen)
    assert [view.held for view, _ in watch.seen] == pytest.approx([held for _, held in watch.seen], abs=1)
    last = [sum(one.arrived for one in view.demand.values()) for view, _ in watch.seen][-1]
    assert last == pytest.approx(20 * 39, abs=60)
    assert sum(one.refused for one in watch.seen[-1][0].demand.values()) == pytest.approx(run.refused, abs=60)
    assert run.refused > 100

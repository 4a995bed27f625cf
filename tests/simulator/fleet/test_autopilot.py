"""The operator's decisions on a simulated fleet."""

from dataclasses import replace

import numpy as np
import pytest

from inflight_operator.decide.tuning_types import Slo
from inflight_operator.reconcile.policy import policy_of
from inflight_operator.reconcile.reconciler import ReconcilerSettings
from inflight_operator.render import Settings
from inflight_settings.limits import Limits
from inflight_simulator.fleet import autopilot
from inflight_simulator.fleet.config import FleetConfig, RequestTargets
from inflight_simulator.fleet.named import simulate_named
from inflight_simulator.fleet.replica import scheduler_config
from inflight_simulator.fleet.run import run_fleet
from tests.simulator.fleet.test_naive import random_requests

CONFIG = FleetConfig(start_up_s=20.0, max_replicas=6)
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
    assert operator._memory.startups.usual == 20.0


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

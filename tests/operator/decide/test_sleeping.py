"""Scale to zero and from zero: conditions, and the number of replicas."""

from dataclasses import replace

import pytest

from inflight_cost.capacity import Replica, Targets, Workload
from inflight_cost.model import CostModel
from inflight_operator.decide.replicas.behavior import Behavior, ScalingHistory, ScalingPolicy, ScalingRules
from inflight_operator.decide.replicas.sleeping import HeldWork, SleepView, decide_sleep, replicas_for
from inflight_operator.observe.gateway_view import GatewayReport, GatewayView, gateway_view
from inflight_settings.limits import Limits, LimitsBounds

FREE = Behavior(ScalingRules(0.0), ScalingRules(60.0))
IDLE = GatewayView(pods=2, heard=2, idle_s=700.0)
LIMITS = LimitsBounds(Limits(1, 64), Limits(64, 2048))
UNKNOWN = HeldWork(None, None, Targets(), LIMITS)
KNOWN = HeldWork(
    Replica(CostModel(0.008, 0.0004, 0.00005, 1e-8, 1e-10), 64_000.0),
    Workload(1000.0, 1000.0, 2e6, 100.0, 2e4),
    Targets(),
    LIMITS,
)
AWAKE = SleepView(
    time=1000.0,
    replicas=1,
    ready=1,
    ready_for=700.0,
    stale=0,
    working=0,
    troubled=0,
    gateway=IDLE,
    idle_timeout=600.0,
    max_replicas=8,
)
ASLEEP = replace(AWAKE, replicas=0, ready=0, ready_for=0.0)


def held(count, tokens=0):
    return GatewayView(pods=2, heard=2, held=count, held_prompt_tokens=tokens)


def decided(view, work=UNKNOWN, behavior=FREE):
    return decide_sleep(view, work, behavior, ScalingHistory())


def test_a_service_without_requests_for_the_idle_timeout_sleeps_without_a_further_window():
    decision, why = decided(AWAKE)
    assert (decision.replicas, decision.code, why.code) == (0, "Idle", "Idle")
    assert (decision.change.frm, decision.change.to) == (1, 0)


def test_all_replicas_of_an_idle_service_go_at_once():
    assert decided(replace(AWAKE, replicas=5, ready=5))[0].replicas == 0


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ({"gateway": held(1)}, "InUse"),
        ({"gateway": replace(IDLE, in_flight=1)}, "InUse"),
        ({"gateway": replace(IDLE, idle_s=599.0)}, "LatelyUsed"),
        ({"gateway": replace(IDLE, heard=1)}, "GatewayNotHeard"),
        ({"gateway": GatewayView(idle_s=700.0)}, "GatewayNotHeard"),
        ({"ready_for": 599.0}, "LatelyUsed"),
        ({"ready": 0, "ready_for": 0.0}, "NoReadyPods"),
        ({"stale": 1}, "MetricsMissing"),
        ({"working": 1}, "EnginesBusy"),
        ({"busy": "Overridden"}, "AwakeDuring"),
        ({"busy": "RollingOut"}, "AwakeDuring"),
        ({"busy": "EngineUpgrade"}, "AwakeDuring"),
        ({"busy": "SpecNotUnderstood"}, "AwakeDuring"),
    ],
)
def test_what_keeps_a_service_awake(what, code):
    decision, why = decided(replace(AWAKE, **what))
    assert decision is None
    assert why.code == code


def test_policies_of_scale_down_bound_the_step_to_zero():
    slow = replace(FREE, scale_down=ScalingRules(0.0, (ScalingPolicy("Pods", 1, 60.0),)))
    decision, _ = decided(replace(AWAKE, replicas=3, ready=3), behavior=slow)
    assert decision.replicas == 2
    disabled = replace(FREE, scale_down=ScalingRules(0.0, select_policy="Disabled"))
    decision, _ = decided(AWAKE, behavior=disabled)
    assert decision.replicas == 1
    assert decision.change is None


def test_a_sleeping_service_sleeps_on_while_nothing_is_held_whatever_else_is_known():
    for gateway in (IDLE, GatewayView(), replace(IDLE, heard=1), replace(IDLE, idle_s=0.0)):
        decision, why = decided(replace(ASLEEP, gateway=gateway))
        assert (decision.replicas, decision.change, why.code) == (0, None, "Idle")


@pytest.mark.parametrize(
    "rules",
    [
        ScalingRules(0.0),
        ScalingRules(300.0, (ScalingPolicy("Percent", 100, 15.0),)),
        ScalingRules(0.0, select_policy="Disabled"),
    ],
)
def test_one_held_request_wakes_a_service_whatever_rules_there_are(rules):
    decision, why = decided(replace(ASLEEP, gateway=held(1)), behavior=replace(FREE, scale_up=rules))
    assert (decision.replicas, decision.code, why.code) == (1, "Waking", "Waking")


def test_one_gateway_pod_that_is_heard_is_enough_to_wake():
    assert decided(replace(ASLEEP, gateway=replace(held(1), heard=1)))[0].replicas == 1


def test_before_the_cost_model_is_known_each_held_request_gets_a_slot():
    assert decided(replace(ASLEEP, gateway=held(50)))[0].replicas == 1
    assert decided(replace(ASLEEP, gateway=held(65)))[0].replicas == 2


def test_held_work_that_one_replica_would_compute_for_too_long_wakes_more_within_max_replicas():
    short, long = held(10, 10_000), held(500, 5_000_000)
    assert decided(replace(ASLEEP, gateway=short), KNOWN)[0].replicas == 1
    several = decided(replace(ASLEEP, gateway=long), KNOWN)[0].replicas
    assert 1 < several <= 8
    assert decided(replace(ASLEEP, gateway=long, max_replicas=2), KNOWN)[0].replicas == 2
    assert replicas_for(500, 10_000_000, KNOWN) > replicas_for(500, 5_000_000, KNOWN)
    assert replicas_for(500, 5_000_000, replace(KNOWN, unit=2.0)) == replicas_for(500, 10_000_000, KNOWN)


def test_requests_that_come_while_replicas_start_raise_their_number_and_never_lower_it():
    waking = replace(AWAKE, replicas=2, ready=0, ready_for=0.0)
    assert decided(replace(waking, gateway=held(200)))[0].replicas == 4
    assert decided(replace(waking, gateway=held(1)))[0].replicas == 2


def test_replicas_that_do_not_start_are_not_answered_by_more_of_them():
    waking = replace(AWAKE, replicas=2, ready=0, ready_for=0.0, troubled=1, gateway=held(200))
    assert decided(waking)[0] is None


def test_the_view_of_several_pods_is_that_of_the_last_request_at_any_of_them():
    quiet = GatewayReport(at=95.0, since=0.0, idle_s=50.0)
    fresh = GatewayReport(at=100.0, since=90.0)
    busy = GatewayReport(at=98.0, since=0.0, held=2, held_prompt_tokens=300, oldest_held_s=1.5, in_flight=3)
    assert gateway_view({"a": quiet}, 1, 100.0).idle_s == 55.0
    assert (
        gateway_view({"a": quiet, "b": fresh}, 2, 100.0).idle_s == 10.0
    )  # it may have had requests before it was restarted
    view = gateway_view({"a": quiet, "b": busy}, 3, 100.0, "gateway-3 is not heard")
    assert (view.held, view.held_prompt_tokens, view.oldest_held_s, view.in_flight) == (2, 300, 3.5, 3)
    assert (view.idle_s, view.known, view.silence) == (0.0, False, "gateway-3 is not heard")
    assert gateway_view({}, 0, 100.0).known is False

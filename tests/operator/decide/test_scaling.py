"""Scaling: properties for any observation, and the arithmetic of each target."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from inflight_operator.decide.decision import Reason
from inflight_operator.decide.replicas.behavior import Behavior, ScalingHistory, ScalingPolicy, ScalingRules
from inflight_operator.decide.replicas.scaling import (
    Recommendation,
    ScalingBounds,
    ScalingObservation,
    ScalingTargets,
    decide_scaling,
)
from tests.operator.decide.words import USUAL, said
from tests.operator.observe.samples import loaded

AT_ONCE = Behavior(scale_up=ScalingRules(0.0), scale_down=ScalingRules(0.0))
BOUNDS = ScalingBounds(1, 8)
WAITING = ScalingTargets(waiting_requests=4)

loads = st.lists(
    st.builds(
        loaded,
        waiting=st.integers(0, 200),
        running=st.integers(0, 64),
        kv_usage=st.none() | st.floats(0, 1),
        max_num_seqs=st.sampled_from([None, 8, 64]),
    ),
    max_size=6,
).map(tuple)


@st.composite
def observations(draw):
    shown = draw(loads)
    stale = draw(st.integers(0, 2))
    starting = draw(st.integers(0, 3))
    ready = len(shown) + stale
    return ScalingObservation(
        time=1000.0,
        replicas=ready + starting,
        ready=ready,
        loads=shown,
        ttft_p95=draw(st.none() | st.floats(0.01, 20)),
        tpot_p95=draw(st.none() | st.floats(0.001, 2)),
        limits_spent=draw(st.booleans()),
        held=draw(st.sampled_from([0, 0, 1, 100])),
    )


targets = st.builds(
    ScalingTargets,
    waiting_requests=st.none() | st.integers(1, 20),
    kv_utilization=st.none() | st.floats(0.1, 1),
    concurrency=st.none() | st.integers(1, 50),
    tpot_p95=st.none() | st.floats(0.01, 1),
    ttft_p95=st.none() | st.floats(0.1, 2),
)
policies = st.lists(
    st.builds(
        ScalingPolicy,
        type=st.sampled_from(["Pods", "Percent"]),
        value=st.integers(1, 200),
        period=st.sampled_from([15.0, 60.0]),
    ),
    max_size=3,
).map(tuple)
rules = st.builds(
    ScalingRules,
    stabilization_window=st.sampled_from([0.0, 30.0, 120.0]),
    policies=policies,
    select_policy=st.sampled_from(["Max", "Min", "Disabled"]),
)
behaviors = st.builds(Behavior, scale_up=rules, scale_down=rules)
bounds = st.tuples(st.integers(1, 5), st.integers(0, 8)).map(lambda two: ScalingBounds(two[0], two[0] + two[1]))


def seen(replicas, waits, *, ready=None, time=1000.0, running=4, kv=0.2, ttft=None, slots=None):
    loads = tuple(loaded(wait, running, kv, slots) for wait in waits)
    return ScalingObservation(time, replicas, len(waits) if ready is None else ready, loads, ttft)


@given(observations(), targets, behaviors, bounds)
def test_the_result_is_within_bounds_or_on_its_way_there_by_policy(observation, wanted, behavior, limits):
    decision = decide_scaling(observation, wanted, behavior, limits, ScalingHistory())
    assert limits.min_replicas <= decision.replicas <= limits.max_replicas
    assert said(decision)
    assert decision.code


@given(observations(), targets, behaviors)
def test_stale_metrics_never_scale_down(observation, wanted, behavior):
    if observation.stale == 0:
        observation = replace(observation, ready=observation.ready + 1, replicas=observation.replicas + 1)
    decision = decide_scaling(observation, wanted, behavior, ScalingBounds(1, 50), ScalingHistory())
    assert decision.replicas >= observation.replicas
    assert not decision.able


@given(observations(), targets, behaviors)
def test_no_fresh_metrics_and_no_held_requests_change_nothing(observation, wanted, behavior):
    blind = replace(observation, loads=(), held=0)
    decision = decide_scaling(blind, wanted, behavior, ScalingBounds(0, 50), ScalingHistory())
    assert decision.replicas == blind.replicas


NEEDED = Reason("DemandNotKnown")


def blind(held, *, ready=4, starting=0, slots=64, **more):
    return ScalingObservation(1000.0, ready + starting, ready, (), held=held, slots=slots, **more)


def decided_blindly(observation, behavior=AT_ONCE, capacity=None):
    return decide_scaling(observation, WAITING, behavior, ScalingBounds(1, 100), ScalingHistory(), capacity)


def test_a_cache_that_no_engine_reports_changes_nothing_and_is_not_called_missing_metrics():
    observation = seen(2, [0, 0], kv=None)
    decision = decide_scaling(observation, ScalingTargets(kv_utilization=0.8), AT_ONCE, BOUNDS, ScalingHistory())
    assert (decision.replicas, decision.code, decision.able) == (2, "KvNotReported", False)
    assert said(decision) == "no engine reports the use of its KV cache: replicas stay as they are"


def test_held_requests_scale_up_without_any_metrics_and_the_reason_says_by_how_much():
    decision = decided_blindly(blind(1000))
    assert decision.replicas == 4 + 16
    assert said(decision) == (
        "replicas 4 -> 20: 1000 requests wait at the gateway and none of 4 ready pods has recent metrics: they count as"
        " full, and a further replica takes 64 requests"
    )
    assert not decision.able


def test_held_requests_without_metrics_scale_up_at_the_rate_of_behavior():
    slowly = replace(AT_ONCE, scale_up=ScalingRules(0.0, (ScalingPolicy("Pods", 3, 60.0),)))
    assert decided_blindly(blind(1000), slowly).replicas == 4 + 3


def test_held_requests_order_nothing_while_the_first_replicas_start():
    assert decided_blindly(blind(1000, ready=0, starting=2)).replicas == 2


def test_held_requests_do_not_order_again_what_starts_already():
    assert decided_blindly(blind(1000, starting=16)).replicas == 20
    assert decided_blindly(blind(1000, starting=20)).replicas == 24
    assert decided_blindly(blind(2000, starting=16)).replicas == 4 + 32


def test_the_few_requests_that_always_wait_for_a_moment_order_nothing_without_metrics():
    assert decided_blindly(blind(25)).replicas == 4
    assert said(decided_blindly(blind(25))).startswith("none of 4 ready pods has recent metrics")


def test_demand_that_the_gateway_knows_decides_where_no_engine_is_measured():
    decision = decided_blindly(blind(1000), capacity=Recommendation(7, NEEDED))
    assert decision.replicas == 7
    fewer = decided_blindly(blind(0), capacity=Recommendation(2, NEEDED))
    assert fewer.replicas == 4


@given(st.integers(0, 5000), st.integers(0, 50), st.integers(0, 50), st.integers(0, 256), st.integers(0, 500))
def test_more_held_requests_never_ask_for_fewer_without_metrics(held, ready, starting, slots, more):
    one, other = (
        decided_blindly(blind(number, ready=ready, starting=starting, slots=slots)) for number in (held, held + more)
    )
    assert max(1, ready + starting) <= one.replicas <= other.replicas


@given(observations(), st.integers(1, 20), st.integers(1, 100))
def test_a_longer_queue_never_asks_for_fewer(observation, target, more):
    if not observation.loads:
        return
    longer = replace(
        observation,
        loads=(replace(observation.loads[0], waiting=observation.loads[0].waiting + more), *observation.loads[1:]),
    )
    wide = ScalingBounds(0, 10_000)
    asked = ScalingTargets(waiting_requests=target)
    before = decide_scaling(observation, asked, AT_ONCE, wide, ScalingHistory())
    after = decide_scaling(longer, asked, AT_ONCE, wide, ScalingHistory())
    assert after.replicas >= before.replicas


@given(observations(), st.builds(ScalingTargets, waiting_requests=st.integers(1, 20)), st.integers(1, 100))
def test_requests_held_at_the_gateway_never_ask_for_fewer(observation, asked, more):
    wide = ScalingBounds(1, 10_000)
    longer = replace(observation, held=observation.held + more)
    before = decide_scaling(observation, asked, AT_ONCE, wide, ScalingHistory())
    after = decide_scaling(longer, asked, AT_ONCE, wide, ScalingHistory())
    assert after.replicas >= before.replicas


@given(
    st.lists(st.tuples(st.integers(0, 300), st.floats(0, 1)), min_size=1, max_size=60),
    st.lists(
        st.builds(ScalingPolicy, type=st.just("Pods"), value=st.integers(1, 3), period=st.sampled_from([15.0, 60.0])),
        min_size=1,
        max_size=1,
    ),
)
def test_a_change_stays_within_its_policy_of_the_period_start(course, policy):
    behavior = Behavior(scale_up=ScalingRules(0.0, tuple(policy)), scale_down=ScalingRules(0.0, tuple(policy)))
    replicas, history, changes = 4, ScalingHistory(), []
    for step, (waiting, kv) in enumerate(course):
        now = step * 5.0
        observation = ScalingObservation(now, replicas, replicas, (loaded(waiting, 4, kv),) * replicas)
        decision = decide_scaling(
            observation, ScalingTargets(waiting_requests=4), behavior, ScalingBounds(1, 500), history
        )
        changes.append((now, decision.replicas - replicas))
        replicas, history = decision.replicas, decision.history
        since_start = sum(change for time, change in changes if time > now - policy[0].period)
        if changes[-1][1] > 0:
            assert since_start <= policy[0].value
        if changes[-1][1] < 0:
            assert since_start >= -policy[0].value


def test_a_queue_asks_for_replicas_at_target_each_and_says_so():
    decision = decide_scaling(seen(1, [37]), WAITING, USUAL, ScalingBounds(1, 2), ScalingHistory())
    assert decision.replicas == 2
    assert said(decision) == "replicas 1 -> 2: 37 requests wait, 4 per replica is the target; maxReplicas 2 is reached"


def test_within_ten_percent_of_target_nothing_changes():
    decision = decide_scaling(seen(10, [44] + [0] * 9), WAITING, AT_ONCE, ScalingBounds(1, 20), ScalingHistory())
    assert decision.replicas == 10
    assert (
        decide_scaling(seen(10, [45] + [0] * 9), WAITING, AT_ONCE, ScalingBounds(1, 20), ScalingHistory()).replicas
        == 12
    )


def test_replicas_that_start_are_capacity_already_ordered():
    """The queue of one pod stays over target while ordered ones load: the order is not repeated."""
    kv = ScalingTargets(waiting_requests=4, kv_utilization=0.8)
    replicas, history, seen_numbers = 1, ScalingHistory(), []
    for step in range(20):
        observation = seen(replicas, [8], ready=1, time=step * 3.0, kv=1.0)
        decision = decide_scaling(observation, kv, USUAL, BOUNDS, history)
        replicas, history = decision.replicas, decision.history
        seen_numbers.append(replicas)
    assert set(seen_numbers) == {2}


def test_a_queue_that_grows_while_replicas_load_orders_only_what_they_will_not_take():
    """12, 21, 30 ... wait while two ordered replicas load; each will take 32 of them."""
    replicas, history, ordered = 1, ScalingHistory(), []
    for step in range(20):
        observation = seen(replicas, [12 + 3 * step], ready=1, time=step * 3.0, slots=32)
        decision = decide_scaling(observation, WAITING, USUAL, BOUNDS, history)
        replicas, history = decision.replicas, decision.history
        ordered.append(replicas)
    assert ordered[0] == 3
    assert set(ordered) == {3}


def test_an_order_stands_while_its_replicas_load_for_longer_than_the_scale_down_window():
    behavior = Behavior(scale_up=ScalingRules(0.0), scale_down=ScalingRules(120.0))
    replicas, history, ordered = 1, ScalingHistory(), []
    for step in range(100):
        observation = seen(replicas, [20], ready=1, time=step * 3.0, slots=64)
        decision = decide_scaling(observation, WAITING, behavior, BOUNDS, history)
        replicas, history = decision.replicas, decision.history
        ordered.append(replicas)
    assert set(ordered) == {5}


def test_late_first_tokens_ask_for_one_more_and_wait_for_what_it_brings():
    slo = ScalingTargets(ttft_p95=0.5)
    history = ScalingHistory()
    settled = decide_scaling(seen(1, [3], time=0.0, ttft=2.0), slo, USUAL, BOUNDS, history)
    assert settled.replicas == 1  # the first window has not been measured whole
    first = decide_scaling(seen(1, [3], time=31.0, ttft=2.0), slo, USUAL, BOUNDS, settled.history)
    assert first.replicas == 2
    assert "p95 TTFT 2s over target 500ms while 3 requests wait" in said(first)
    loading = decide_scaling(seen(2, [3], ready=1, time=34.0, ttft=2.0), slo, USUAL, BOUNDS, first.history)
    ready = decide_scaling(seen(2, [3, 3], time=40.0, ttft=2.0), slo, USUAL, BOUNDS, loading.history)
    later = decide_scaling(seen(2, [3, 3], time=71.0, ttft=2.0), slo, USUAL, BOUNDS, ready.history)
    assert [loading.replicas, ready.replicas, later.replicas] == [2, 2, 3]


def test_late_first_tokens_without_a_queue_ask_for_nothing():
    calm = ScalingHistory(complete_since=-1000.0)
    decision = decide_scaling(seen(1, [0], ttft=2.0), ScalingTargets(ttft_p95=0.5), USUAL, BOUNDS, calm)
    assert decision.replicas == 1


def test_down_waits_for_the_window_and_says_how_long():
    behavior = Behavior(scale_up=ScalingRules(0.0), scale_down=ScalingRules(120.0))
    busy = decide_scaling(seen(2, [4, 4], time=0.0), WAITING, behavior, BOUNDS, ScalingHistory())
    held = decide_scaling(seen(2, [0, 0], time=40.0, running=0), WAITING, behavior, BOUNDS, busy.history)
    assert held.replicas == 2
    assert held.code == "ScaleDownHeld"
    assert said(held) == "no request waits, 4 per replica is the target; held by the scale-down window for 80 s more"
    gone = decide_scaling(seen(2, [0, 0], time=121.0, running=0), WAITING, behavior, BOUNDS, held.history)
    assert gone.replicas == 1
    assert said(gone).startswith("replicas 2 -> 1: no request waits")


def test_a_restarted_operator_waits_out_the_window_before_it_scales_down():
    decision = decide_scaling(seen(5, [0] * 5, running=0), WAITING, USUAL, BOUNDS, ScalingHistory())
    assert decision.replicas == 5


def test_a_time_without_metrics_does_not_use_up_the_scale_down_window():
    behavior = Behavior(scale_up=ScalingRules(0.0), scale_down=ScalingRules(120.0))
    full = ScalingObservation(0.0, 4, 4, (loaded(0, 60, 0.8, 64),) * 4)
    history = decide_scaling(full, WAITING, behavior, BOUNDS, ScalingHistory()).history
    for now in range(3, 301, 3):  # far longer than the window: nothing is known of this time
        unseen = replace(full, time=float(now), loads=())
        history = decide_scaling(unseen, WAITING, behavior, BOUNDS, history).history
    idle = replace(full, time=303.0, loads=(loaded(0, 0, 0.0, 64),) * 4)
    decision = decide_scaling(idle, WAITING, behavior, BOUNDS, history)
    assert (decision.replicas, decision.code) == (4, "ScaleDownHeld")
    later = replace(idle, time=303.0 + 120.0)
    assert decide_scaling(later, WAITING, behavior, BOUNDS, decision.history).replicas == 1


def test_an_empty_queue_keeps_the_replicas_that_running_requests_need():
    decision = decide_scaling(seen(3, [0, 0, 0], running=6, slots=8), WAITING, AT_ONCE, BOUNDS, ScalingHistory())
    assert decision.replicas == 3  # 18 requests run, 8 fit into one replica
    fewer = decide_scaling(seen(3, [0, 0, 0], running=5, slots=8), WAITING, AT_ONCE, BOUNDS, ScalingHistory())
    assert fewer.replicas == 2


def test_the_largest_ask_wins():
    both = ScalingTargets(waiting_requests=4, kv_utilization=0.5)
    decision = decide_scaling(seen(2, [0, 0], kv=0.9), both, USUAL, BOUNDS, ScalingHistory())
    assert decision.replicas == 4
    assert said(decision) == "replicas 2 -> 4: 90% of the KV cache is in use, 50% is the target"


def test_outside_the_bounds_goes_to_the_bound_at_once():
    low = decide_scaling(seen(1, [0]), WAITING, USUAL, ScalingBounds(3, 8), ScalingHistory())
    high = decide_scaling(seen(5, [90] * 5), WAITING, USUAL, ScalingBounds(1, 2), ScalingHistory())
    assert (low.replicas, said(low)) == (3, "replicas 1 -> 3: minReplicas is 3")
    assert (high.replicas, said(high)) == (2, "replicas 5 -> 2: maxReplicas is 2")


def test_what_policies_hold_back_is_said():
    behavior = Behavior(ScalingRules(0.0, (ScalingPolicy("Pods", 1, 60.0),)), ScalingRules(300.0))
    decision = decide_scaling(seen(1, [30]), WAITING, behavior, BOUNDS, ScalingHistory())
    assert decision.replicas == 2
    assert said(decision).endswith("8 are needed, behavior.scaleUp.policies allow 2 now")


# --- the capacity model and targets of a user's own ---

CAPACITY = Reason(
    "Demand",
    {"replicas": 6, "rate": 61.0, "prompt": 1155.0, "output": 211.0, "need": 4.9, "each": 12.4, "margin": 1.1},
)


NONE = ScalingTargets()


def asked(observation, replicas, targets=NONE, behavior=AT_ONCE):
    wide = ScalingBounds(1, 100)
    return decide_scaling(observation, targets, behavior, wide, ScalingHistory(), Recommendation(replicas, CAPACITY))


def test_the_capacity_model_decides_alone_where_no_target_is_set():
    decision = asked(seen(2, [50, 50]), 6)
    assert decision.replicas == 6
    said_of = "replicas 2 -> 6: 6 replicas: 61 requests/s of 1,155 + 211 tokens need 4.9 at 12.4/s each, margin 1.1"
    assert said(decision) == said_of
    assert asked(seen(8, [50] * 8), 6).replicas == 6


def test_a_change_that_a_bound_of_the_spec_cuts_short_says_so():
    def cut(current, low, high):
        bounds, wanted = ScalingBounds(low, high), Recommendation(6, CAPACITY)
        loaded = seen(current, [50] * current)
        return decide_scaling(loaded, NONE, AT_ONCE, bounds, ScalingHistory(), wanted)

    assert said(cut(2, 1, 4)).startswith("replicas 2 -> 4: 6 replicas: ")
    assert said(cut(2, 1, 4)).endswith("; maxReplicas 4 is reached")
    assert said(cut(9, 8, 10)).startswith("replicas 9 -> 8: 6 replicas: ")
    assert said(cut(9, 8, 10)).endswith("; minReplicas is 8")


@given(observations(), st.integers(1, 20), targets)
def test_with_a_capacity_model_no_fewer_are_asked_for_than_without(observation, replicas, wanted):
    wide = ScalingBounds(1, 100)
    alone = decide_scaling(observation, wanted, AT_ONCE, wide, ScalingHistory())
    both = asked(observation, replicas, wanted)
    if observation.loads and wanted != ScalingTargets():
        assert both.replicas >= alone.replicas


@given(observations(), st.integers(1, 20), behaviors)
def test_stale_metrics_never_scale_down_by_the_capacity_model(observation, replicas, behavior):
    if observation.stale == 0:
        observation = replace(observation, ready=observation.ready + 1, replicas=observation.replicas + 1)
    decision = asked(observation, replicas, behavior=behavior)
    assert decision.replicas >= observation.replicas


def test_replicas_that_start_count_as_the_model_asked_for_them():
    assert asked(seen(6, [9, 9], ready=2), 6).replicas == 6
    blocked = replace(seen(6, [9, 9], ready=2), blocked=1, cause="no memory")
    assert asked(blocked, 6).replicas == 7
    assert asked(replace(blocked, shared_cause=True), 6).replicas == 6


def test_a_target_of_concurrency_counts_what_runs_and_waits():
    target = ScalingTargets(concurrency=8)
    decision = decide_scaling(seen(2, [6, 6], running=6), target, AT_ONCE, BOUNDS, ScalingHistory())
    assert decision.replicas == 3
    assert said(decision) == "replicas 2 -> 3: 12.0 requests in each replica, 8 is the target"
    assert decide_scaling(seen(4, [0] * 4, running=4), target, AT_ONCE, BOUNDS, ScalingHistory()).replicas == 2


def slow(replicas, tpot=0.2, **more):
    return replace(seen(replicas, [0] * replicas), tpot_p95=tpot, **more)


def test_a_time_per_token_that_limits_cannot_mend_orders_one_replica_and_waits_for_its_effect():
    target, settled = ScalingTargets(tpot_p95=0.1), ScalingHistory(complete_since=0.0)
    spent = slow(2, limits_spent=True)
    decision = decide_scaling(spent, target, AT_ONCE, BOUNDS, settled)
    assert decision.replicas == 3
    assert said(decision).endswith("p95 TPOT 200ms over target 100ms, and no limit can be lowered further")
    soon = decide_scaling(slow(3, ready=2, limits_spent=True), target, AT_ONCE, BOUNDS, decision.history)
    assert soon.replicas == 3
    assert decide_scaling(slow(2), target, AT_ONCE, BOUNDS, settled).replicas <= 2
    assert decide_scaling(slow(2, 0.105, limits_spent=True), target, AT_ONCE, BOUNDS, settled).replicas <= 2


def test_engines_that_run_one_request_each_are_not_helped_by_more_of_them():
    alone = replace(slow(2, limits_spent=True), loads=(loaded(0, 1, 0.1),) * 2)
    settled = ScalingHistory(complete_since=0.0)
    assert decide_scaling(alone, ScalingTargets(tpot_p95=0.1), AT_ONCE, BOUNDS, settled).replicas <= 2

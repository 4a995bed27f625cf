"""Properties of every decision, whatever happens to the fleet."""

import math
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from inflight_base.page.reader import PageError
from inflight_operator.observe.metrics import READER, parse_metrics
from inflight_operator.observe.window import Window
from inflight_operator.reconcile.decide import decide
from inflight_operator.reconcile.snapshot import fresh_samples
from inflight_operator.recording.reader import Recording, differences
from inflight_operator.recording.recorder import DecisionRecorder
from tests.operator.fakes import KEY
from tests.operator.reconcile.random_fleet import (
    CAPACITY,
    STALE_AFTER,
    FluidEngine,
    RandomFleet,
    Tick,
    overridden,
    specs,
    ticks,
)

RECOVERY = 30.0
REPLICA_RATE = FluidEngine(running=CAPACITY.max_num_seqs).rate
"""Requests a second of one replica with all slots taken."""

start_ups = st.sampled_from([5.0, 30.0, 120.0])
# A case is a course of some 40 rounds, each checked: 70 ms and more.
some = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def course(spec, course, **more):
    """All rounds of a fleet."""
    fleet = RandomFleet(spec, **more)
    for tick in course:
        fleet.tick(tick)
    return fleet.rounds


@some
@given(specs(), ticks, start_ups, st.integers(1, 14))
def test_replicas_stay_within_bounds(spec, ticks, start_up, replicas):
    low, high = spec["scaling"]["minReplicas"], spec["scaling"]["maxReplicas"]
    for one in course(spec, ticks, start_up=start_up, replicas=replicas):
        assert low <= one.plan.replicas <= high


@some
@given(specs(), ticks, start_ups)
def test_bounds_that_cannot_be_read_remove_no_replica(spec, ticks, start_up):
    for one in course(spec, ticks, start_up=start_up, unread=("spec.scaling.maxReplicas is unknown",)):
        assert one.plan.replicas >= one.memory.replicas


@some
@given(specs(), ticks, start_ups)
def test_without_fresh_metrics_nothing_is_decided_but_that_a_canary_ends(spec, ticks, start_up):
    for one in course(spec, ticks, start_up=start_up):
        if one.all_stale:
            assert one.plan.replicas == one.memory.replicas
            assert one.plan.limits.limits == one.memory.limits.limits
            assert {decision.reason.code for decision in one.plan.decisions} <= {"CanaryEnded"}


@some
@given(specs(), ticks, start_ups)
def test_while_a_ready_pod_gives_no_fresh_sample_no_replica_is_removed(spec, ticks, start_up):
    for one in course(spec, ticks, start_up=start_up):
        if one.some_stale:
            assert one.plan.replicas >= one.memory.replicas


@some
@given(specs(tuning=["Recommend"]), ticks, start_ups)
def test_recommend_changes_no_limit(spec, ticks, start_up):
    for one in course(spec, ticks, start_up=start_up):
        assert one.plan.limits == one.memory.limits
        assert all(limits == one.plan.limits for _, limits in one.plan.push)
        assert not any(decision.applied for decision in one.plan.decisions if decision.kind == "Tuning")


@some
@given(specs(tuning=["Off"]), ticks, start_ups)
def test_off_keeps_the_capacities(spec, ticks, start_up):
    for one in course(spec, ticks, start_up=start_up):
        assert one.plan.limits.limits == CAPACITY
        assert all(limits.limits == CAPACITY for _, limits in one.plan.push)
        assert not any(decision.kind == "Tuning" for decision in one.plan.decisions)


@some
@given(specs(tuning=["Auto"]), ticks, start_ups)
def test_limits_stay_within_the_bounds_of_tuning_once_they_were_moved(spec, ticks, start_up):
    bounds = spec["tuning"].get("maxNumSeqs", {"min": 1, "max": CAPACITY.max_num_seqs})
    for one in course(spec, ticks, start_up=start_up):
        if one.plan.limits != one.memory.limits:
            assert bounds["min"] <= one.plan.limits.limits.max_num_seqs <= bounds["max"]
            assert 1 <= one.plan.limits.limits.max_num_batched_tokens <= CAPACITY.max_num_batched_tokens


@some
@given(overridden(), ticks, start_ups)
def test_limits_by_hand_hold_until_their_end_and_no_other_decision_moves_them(spec, ticks, start_up):
    asked = spec["tuning"]["override"]
    for one in course(spec, ticks, start_up=start_up):
        tuned = [decision.reason.code for decision in one.plan.decisions if decision.kind == "Tuning"]
        held = one.snapshot.at < datetime.fromisoformat(asked["until"])
        assert (one.plan.memory.before_override is not None) == held
        if held:
            limits, before = one.plan.limits.limits, one.plan.memory.before_override
            assert limits.max_num_seqs == asked["maxNumSeqs"]
            assert limits.max_num_batched_tokens == asked.get("maxNumBatchedTokens", before.max_num_batched_tokens)
            assert set(tuned) <= {"ByHand"}
            assert one.plan.canary is None
        assert one.plan.limits.revision >= one.memory.limits.revision


@some
@given(specs(), ticks, start_ups, st.frozensets(st.integers(1, 6)))
def test_no_engine_gets_limits_above_its_capacity_or_older_than_its_own(spec, ticks, start_up, small):
    for one in course(spec, ticks, start_up=start_up, small=small):
        for pod, limits in one.plan.push:
            sample = one.snapshot.fresh[pod.uid]
            assert limits.limits == limits.limits.at_most(sample.capacity)
            assert limits.revision >= sample.revision


@some
@given(specs(), ticks, start_ups, st.one_of(st.none(), st.integers(0, 12)))
def test_in_mode_external_the_replicas_of_the_spec_count(spec, ticks, start_up, replicas):
    spec["scaling"]["mode"] = "External"
    if replicas is not None:
        spec["replicas"] = replicas
    for one in course(spec, ticks, start_up=start_up):
        assert one.plan.replicas == (one.memory.replicas if replicas is None else replicas)
        assert not any(decision.kind == "Scaling" for decision in one.plan.decisions)


@some
@given(
    rate=st.sampled_from([3.0, 8.0, 15.0, 30.0]),
    ready=st.integers(1, 3),
    slo=st.booleans(),
    tuning=st.sampled_from(["Auto", "Recommend", "Off"]),
)
def test_an_order_does_not_grow_while_the_pods_of_it_start(rate, ready, slo, tuning):
    """The engines show the same for 120 s; what is ordered starts for longer than that. After two windows all that they
    show is known, and further replicas would be ordered for the same work a second time."""
    spec = {
        "engine": {"maxNumSeqs": CAPACITY.max_num_seqs, "maxNumBatchedTokens": CAPACITY.max_num_batched_tokens},
        "scaling": {"minReplicas": ready, "maxReplicas": 50},
        "tuning": {"mode": tuning},
        **({"slo": {"ttftP95": "2s", "tpotP95": "200ms"}} if slo else {}),
    }
    fleet = RandomFleet(spec, start_up=300.0, replicas=ready)
    for _ in range(60):
        fleet.tick(Tick(rate=rate))
        if any(pod.engine.waiting > 60 for pod in fleet.pods):
            break
    waits = [round(pod.engine.waiting) for pod in fleet.pods]
    orders = []
    for _ in range(40):
        for pod, waiting in zip(fleet.pods, waits, strict=False):
            pod.engine.waiting = float(waiting)  # the same shows: what comes in beyond what goes out is turned away
        orders.append(fleet.tick(Tick(rate=rate)).plan.replicas)
    assert max(orders[20:]) <= max(orders[:20])


@some
@given(
    rate=st.floats(5.0, 90.0),
    start_up=st.sampled_from([30.0, 60.0, 120.0]),
    slo=st.booleans(),
    tuning=st.sampled_from(["Recommend", "Off"]),
)
def test_a_load_of_120_s_orders_no_more_than_it_needs_while_pods_start(rate, start_up, slo, tuning):
    """The needed replicas are known here: those for its rate, and for the requests that will wait when pods that are
    ordered now are ready, to be worked off in `RECOVERY` seconds. Twice that and one replica are granted: a load that
    steps up looks like one that goes on to rise."""
    spec = {
        "engine": {"maxNumSeqs": CAPACITY.max_num_seqs, "maxNumBatchedTokens": CAPACITY.max_num_batched_tokens},
        "scaling": {"minReplicas": 1, "maxReplicas": 100},
        "tuning": {"mode": tuning},
        **({"slo": {"ttftP95": "2s", "tpotP95": "200ms"}} if slo else {}),
    }
    fleet = RandomFleet(spec, start_up=start_up)
    for _ in range(20):
        fleet.tick(Tick(rate=2.0))
    for _ in range(40):
        one = fleet.tick(Tick(rate=rate))
        waiting = sum(pod.engine.waiting for pod in fleet.pods)
        later = max(0.0, waiting + start_up * (rate - len(one.ready) * REPLICA_RATE))
        needed = math.ceil(1.0 + 2.0 * (rate + later / RECOVERY) / REPLICA_RATE)
        assert one.plan.replicas <= max(one.memory.replicas, needed)


@settings(some, max_examples=10)
@given(st.one_of(specs(), overridden()), ticks, start_ups, st.sampled_from([(), ("spec.rollout.surge is unknown",)]))
def test_every_decision_can_be_repeated_from_its_recording(spec, ticks, start_up, unread):
    rounds = course(spec, ticks, start_up=start_up, unread=unread)
    with tempfile.TemporaryDirectory() as folder:
        recorder = DecisionRecorder(Path(folder))
        for one in rounds:
            recorder.decided(KEY, one.snapshot, one.memory, one.plan)
        recorder.close()
        (file,) = Path(folder).iterdir()
        recorded = list(Recording(file).rounds())
    assert len(recorded) == len(rounds)
    for was, one in zip(rounds, recorded, strict=True):
        token = replace(was.snapshot, admin_token=one.snapshot.admin_token)
        assert [str(each) for each in differences(token, one.snapshot)] == []
        assert [str(each) for each in differences(one.plan, decide(one.snapshot, one.memory))] == []


@some
@given(specs(), ticks, start_ups)
def test_equal_snapshots_give_equal_plans_in_whatever_order_they_were_made(spec, ticks, start_up):
    for one in course(spec, ticks, start_up=start_up):
        snapshot = one.snapshot
        turned = replace(
            snapshot,
            window=replace(snapshot.window, pods=dict(reversed(snapshot.window.pods.items()))),
            fresh=dict(reversed(snapshot.fresh.items())),
            pushes=dict(reversed(snapshot.pushes.items())),
        )
        assert decide(snapshot, one.memory) == one.plan
        again = decide(turned, one.memory)
        assert (again.replicas, again.limits, again.push) == (one.plan.replicas, one.plan.limits, one.plan.push)
        assert _made(again) == _made(one.plan)
        assert [(each.type, each.status, each.reason) for each in again.findings] == [
            (each.type, each.status, each.reason) for each in one.plan.findings
        ]


def _made(plan):
    return [(one.kind, one.knob, one.frm, one.to, one.reason.code, one.applied) for one in plan.decisions]


def test_decisions_do_not_depend_on_the_order_of_sets(tmp_path):
    """Strings hash otherwise in each process: a recording of one is replayed in another."""
    recorder = DecisionRecorder(tmp_path)
    spec = {"slo": {"ttftP95": "2s", "tpotP95": "30ms"}, "engine": {"maxNumSeqs": 64, "maxNumBatchedTokens": 2048}}
    generator = random.Random(7)
    events = ["", "", "delete", "block", "unready", "evict"]
    fleet = RandomFleet(spec)
    for _ in range(80):
        fleet.tick(
            Tick(rate=generator.choice([0.0, 10.0, 60.0]), event=generator.choice(events), pod=generator.randrange(6))
        )
    for one in fleet.rounds:
        recorder.decided(KEY, one.snapshot, one.memory, one.plan)
    recorder.close()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "inflight_simulator.cli", "replay-decisions", *map(str, tmp_path.iterdir())],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "81 rounds replayed: no difference"), done


numbers = st.one_of(
    st.sampled_from(["0", "1", "5", "1e300", "NaN", "+Inf", "-Inf", "-1", "9007199254740992", "1e-300", "0.5", "1e18"]),
    st.floats(0, 2.0**53).map(str),
    st.integers(0, 100_000).map(str),
)


@st.composite
def pages(draw):
    """Pages with any number in any place; many are refused."""
    lines = [f"vllm:num_requests_running {draw(st.integers(0, 1000))}"]
    for name in draw(st.lists(st.sampled_from(READER.names), max_size=25)):
        if name.endswith("_bucket"):
            counts = sorted(draw(st.lists(st.integers(0, 10**6), min_size=3, max_size=3)))
            edges = ["0.1", draw(st.sampled_from(["0.5", "1", "1e6"])), "+Inf"]
            lines += [f'{name}{{le="{edge}"}} {each}' for edge, each in zip(edges, counts, strict=True)]
        elif name == "inflight_step_cost_seconds":
            terms = ["step", "decode_sequence", "prefill_token", "decode_kv_token", "prefill_context_token"]
            lines += [f'{name}{{term="{term}"}} {draw(numbers)}' for term in terms]
        elif name == "inflight_step_cost_curve_seconds":
            lines += [f'{name}{{tokens="{tokens}"}} {draw(numbers)}' for tokens in (1, 64, 2048)]
        else:
            lines.append(f"{name} {draw(numbers)}")
    return "\n".join(lines) + "\n"


A_PART_OF_A_REQUEST = """vllm:num_requests_running 0
inflight_arrived_requests_total 1e-300
inflight_arrived_prompt_tokens_total 1
inflight_output_tokens_mean 1
inflight_step_cost_curve_seconds{tokens="1"} 0
inflight_step_cost_curve_seconds{tokens="64"} 0
inflight_step_cost_curve_seconds{tokens="2048"} 0
"""


@settings(some, max_examples=60)
@given(specs(), st.lists(pages(), min_size=1, max_size=8))
@example(
    {"engine": {"maxNumSeqs": 64, "maxNumBatchedTokens": 2048}}, ["vllm:num_requests_running 0\n", A_PART_OF_A_REQUEST]
)
def test_no_page_that_is_parsed_makes_a_decision_fail(spec, texts):
    fleet = RandomFleet(spec)
    fleet.tick(Tick())
    window, parsed = Window(), 0
    for text in texts:
        fleet.now += 3.0
        try:
            samples = {"uid-chat-1": parse_metrics(text, fleet.now)}
        except PageError:
            continue
        parsed += 1
        window = window.with_samples(samples, samples, fleet.now)
        for passed in (0.0, 20.0):
            snapshot = replace(fleet.snapshot(), now=fleet.now + passed, window=window)
            snapshot = replace(snapshot, fresh=fresh_samples(window, snapshot.pods, snapshot.now, STALE_AFTER))
            plan = decide(snapshot, fleet.memory)
            fleet.memory = plan.memory
            assert math.isfinite(plan.replicas)
    assume(parsed)

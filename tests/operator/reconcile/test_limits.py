"""Limits of running engines: pushed, accepted, rejected, and never a pod's to decide for others."""

from dataclasses import replace
from itertools import pairwise

import pytest

from inflight_operator.decide.tuning.model import LEAST_MEMORY, TIGHTEST
from inflight_operator.decide.tuning.types import Bracket, Fence
from inflight_operator.reconcile.reconciler import ReconcilerSettings
from inflight_settings.limits import HIGHEST_LIMITS, Limits, LimitsInForce
from tests.operator.fakes import KEY
from tests.operator.reconcile.world import SMALL, START


async def test_a_burst_changes_limits_on_the_running_pod_with_the_services_token(world):
    world.service(spec={**SMALL, "slo": {"tpotP95": "50ms"}})
    engine = world.pod(1)
    for _ in range(3):
        await world.round()
    for _ in range(15):
        for _ in range(12):
            engine.model.add(120, 80)
        await world.round()
    await world.round(0.5)
    assert len(engine.pushed) >= 2
    limits, token = engine.pushed[-1]
    assert token == "token of service-uid"
    assert limits.revision == world.status["limits"]["revision"] == engine.revision
    assert world.status["limits"]["podsInForce"] == 1
    tuned = [one for one in world.status["decisions"] if one["kind"] == "Tuning"]
    assert tuned[0]["applied"] is True
    assert "over target 50ms" in tuned[0]["reason"]


async def test_the_longest_interval_still_measures_enough_to_tune(world):
    world.every = ReconcilerSettings(interval=60.0)
    world.restart()
    world.service(spec={**SMALL, "slo": {"tpotP95": "50ms"}})
    engine = world.pod(1)
    codes = []
    for _ in range(6):
        for _ in range(400):
            engine.model.add(120, 80)
        await world.round(60.0)
        codes.append(world.condition("TuningActive")["reason"])
    assert "TpotOverTarget" in codes, codes
    assert world.status["observed"]["tpotP95"]


async def test_new_pods_are_brought_to_the_limits_in_force(world):
    limits = {"maxNumSeqs": 12, "maxNumBatchedTokens": 512, "revision": 7, "podsInForce": 1, "summary": "12/512"}
    world.service(spec=SMALL, status={"limits": limits})
    engine = world.pod(1)
    await world.round()
    assert engine.pushed[0][0] == LimitsInForce(Limits(12, 512), 7)
    config = next(call[2] for call in world.api.of("apply") if call[1] == "ConfigMap")
    assert '"max_num_seqs": 12' in config["data"]["limits.json"]
    await world.round()
    assert len(engine.pushed) == 1


async def test_a_lost_status_does_not_leave_engines_behind_their_own_revision(world):
    world.service(spec=SMALL)
    engine = world.pod(1)
    await world.round()
    engine.revision, engine.model.max_num_seqs = 9, 12
    world.service(spec=SMALL, status={})
    world.restart()
    await world.round()
    assert engine.pushed[-1][0].revision > 9
    assert world.status["limits"]["revision"] == engine.revision
    assert engine.model.max_num_seqs == 64


async def test_the_revision_that_one_pod_claims_is_not_taken_over(world):
    limits = {"maxNumSeqs": 12, "maxNumBatchedTokens": 512, "revision": 7, "podsInForce": 2}
    world.service(spec=SMALL, status={"limits": limits, "desiredReplicas": 2})
    honest, liar = world.pod(1), world.pod(2)
    liar.revision, liar.refuse = 2**53, "HTTP 409"
    for _ in range(4):
        await world.round()
    # Past whatever an operator gave before, once; where that is not enough, the pod stands alone.
    assert honest.revision == world.status["limits"]["revision"] == int(START.timestamp()) + 3
    assert "chat-2 did not take its limits" in world.condition("TuningActive")["message"]


async def test_one_pod_that_reports_a_capacity_of_1_does_not_limit_the_others(world):
    world.service(spec=SMALL, status={"desiredReplicas": 2})
    honest, liar = world.pod(1), world.pod(2)
    liar.capacity = Limits(1, 1)
    for _ in range(12):
        await world.round()
    assert world.status["limits"]["summary"] == "64/2048"
    assert honest.model.max_num_seqs == 64
    assert liar.pushed[0][0].limits == Limits(1, 1)


async def test_recommend_advises_once_and_touches_no_engine(world):
    world.service(spec={**SMALL, "slo": {"tpotP95": "50ms"}, "tuning": {"mode": "Recommend"}})
    engine = world.pod(1)
    for _ in range(30):
        for _ in range(12):
            engine.model.add(120, 80)
        await world.round()
    advice = [one for one in world.status["decisions"] if one["kind"] == "Tuning"]
    assert advice
    assert not any(one["applied"] for one in advice)
    assert all(one["change"] != other["change"] for one, other in pairwise(advice))
    assert engine.pushed == []


async def test_tuning_off_brings_engines_back_to_capacity(world):
    limits = {"maxNumSeqs": 12, "maxNumBatchedTokens": 512, "revision": 7, "podsInForce": 1, "summary": "12/512"}
    world.service(spec={**SMALL, "tuning": {"mode": "Off"}}, status={"limits": limits})
    engine = world.pod(1)
    await world.round()
    assert engine.pushed[0][0] == LimitsInForce(Limits(64, 2048), 8)


async def measured_service(world):
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(3):
        await world.round()


def learn(world, **corrections):
    """Gives the service's memory corrections, as late tokens and preemptions would."""
    known = world.reconciler._known[KEY]
    known.memory = replace(known.memory, tuning=replace(known.memory.tuning, **corrections))


def learned(world):
    state = world.reconciler._known[KEY].memory.tuning
    return state.tighten, state.memory


async def test_corrections_of_the_cost_model_outlast_a_restart_of_the_operator_until_they_expire(world):
    await measured_service(world)
    learn(world, tighten=0.64, tighten_until=world.now + 800, memory=0.85, memory_until=world.now + 300)
    await world.round()
    assert {name: one["share"] for name, one in world.status["tuning"].items()} == {"tpotTarget": 0.64, "kvCache": 0.85}
    world.restart()
    await world.round()
    assert learned(world) == (0.64, 0.85)
    await world.round(400)
    world.restart()
    await world.round()
    assert learned(world) == (0.64, 1.0)
    await world.round(600)
    world.restart()
    await world.round()
    assert learned(world) == (1.0, 1.0)


async def test_the_interval_of_the_search_outlasts_a_restart_of_the_operator_until_it_expires(world):
    await measured_service(world)
    bracket = Bracket(Limits(32, 1024), Limits(64, 2048), Limits(60, 2000), world.now + 800)
    learn(world, bracket=bracket)
    await world.round()
    writes = world.status
    for _ in range(5):
        await world.round()
    assert world.status["tuning"] == writes["tuning"]
    world.restart()
    await world.round()
    known = world.reconciler._known[KEY].memory.tuning.bracket
    assert replace(known, until=0.0) == replace(bracket, until=0.0)
    assert bracket.until <= known.until <= bracket.until + 60.0
    await world.round(900)
    world.restart()
    await world.round()
    assert world.reconciler._known[KEY].memory.tuning.bracket is None
    assert "tuning" not in world.status


async def test_values_that_the_rules_reverted_outlast_a_restart_of_the_operator_until_they_expire(world):
    await measured_service(world)
    slots, step = (
        Fence("max_num_seqs", True, 48, world.now + 800),
        Fence("max_num_batched_tokens", False, 256, world.now + 300),
    )
    learn(world, fences=(slots, step))
    await world.round()
    written = world.status["tuning"]
    await world.round()
    assert world.status["tuning"] == written
    for kept in ((slots, step), (slots,)):
        world.restart()
        await world.round()
        known = world.reconciler._known[KEY].memory.tuning.fences
        assert [replace(one, until=0.0) for one in known] == [replace(one, until=0.0) for one in kept]
        # Ends are written in whole minutes by each process.
        assert all(one.until <= fence.until <= one.until + 120.0 for one, fence in zip(kept, known, strict=True))
        await world.round(450)
    await world.round(30)
    world.restart()
    await world.round()
    assert world.reconciler._known[KEY].memory.tuning.fences == ()
    assert "tuning" not in world.status


@pytest.mark.parametrize(("seqs", "read"), [(-5, 1), (10**15, HIGHEST_LIMITS.max_num_seqs)])
async def test_fences_that_another_operator_wrote_are_bounded(world, seqs, read):
    await measured_service(world)
    fence = {"limit": "maxNumSeqs", "direction": "Up", "value": seqs, "until": "2100-01-01T00:00:00Z", "why": "new"}
    world.service(status={**world.status, "tuning": {"fences": [fence]}})
    world.restart()
    await world.round()
    (known,) = world.reconciler._known[KEY].memory.tuning.fences
    assert (known.knob, known.up, known.value) == ("max_num_seqs", True, read)
    assert known.until <= world.now + world.every.tuning.fence


@pytest.mark.parametrize(("seqs", "read"), [(0, 1), (-5, 1), (10**15, HIGHEST_LIMITS.max_num_seqs)])
async def test_an_interval_that_another_operator_wrote_is_bounded(world, seqs, read):
    await measured_service(world)
    pair = {"maxNumSeqs": seqs, "maxNumBatchedTokens": 2048}
    written = {"bracket": {"good": pair, "bad": pair, "modelled": pair, "until": "2100-01-01T00:00:00Z", "why": "new"}}
    world.service(status={**world.status, "tuning": written})
    world.restart()
    await world.round()
    known = world.reconciler._known[KEY].memory.tuning.bracket
    assert known.good == known.bad == known.wanted == Limits(read, 2048)
    assert known.until <= world.now + world.every.tuning.fence


async def test_corrections_are_not_taken_over_for_another_spec_or_engine(world):
    await measured_service(world)
    bracket = Bracket(Limits(32, 1024), Limits(64, 2048), Limits(60, 2000), world.now + 800)
    learn(world, tighten=0.64, tighten_until=world.now + 800, bracket=bracket)
    await world.round()
    kept = world.status
    assert "tuning" in kept
    for status in ({**kept, "engine": {**kept["engine"], "image": "other"}}, {**kept, "observedGeneration": 7}):
        world.service(status=status)
        world.restart()
        await world.round()
        assert learned(world) == (1.0, 1.0)
        assert world.reconciler._known[KEY].memory.tuning.bracket is None


@pytest.mark.parametrize(
    "written",
    [
        "later",
        {"tpotTarget": 0.5},
        {"tpotTarget": {"share": "half", "until": "2100-01-01T00:00:00Z"}},
        {"tpotTarget": {"share": 0.5}},
    ],
)
async def test_corrections_that_this_operator_cannot_read_are_left_out_and_the_limits_stay(world, written):
    await measured_service(world)
    world.service(status={**world.status, "tuning": written})
    limits = world.status["limits"]
    world.restart()
    await world.round()
    assert learned(world) == (1.0, 1.0)
    assert world.status["limits"]["revision"] == limits["revision"]


async def test_corrections_that_another_operator_wrote_are_bounded(world):
    await measured_service(world)
    far = "2100-01-01T00:00:00Z"
    written = {"tpotTarget": {"share": 0.001, "until": far, "why": "new"}, "kvCache": {"share": -3, "until": far}}
    world.service(status={**world.status, "tuning": {**written, "later": 1}})
    world.restart()
    await world.round()
    assert learned(world) == (TIGHTEST, LEAST_MEMORY)
    state = world.reconciler._known[KEY].memory.tuning
    assert max(state.tighten_until, state.memory_until) <= world.now + world.every.tuning.corrected


async def test_an_engine_that_refuses_its_limits_is_named(world):
    limits = {"maxNumSeqs": 12, "maxNumBatchedTokens": 512, "revision": 7, "podsInForce": 1, "summary": "12/512"}
    world.service(spec=SMALL, status={"limits": limits})
    world.pod(1).refuse = "HTTP 401"
    await world.round()
    await world.round()
    active = world.condition("TuningActive")
    assert (active["status"], active["reason"]) == ("False", "LimitsNotTaken")
    assert "chat-1 did not take its limits: HTTP 401" in active["message"]
    assert world.status["limits"]["podsInForce"] == 0


async def test_another_engine_is_measured_from_the_beginning_and_another_target_is_not(world):
    world.service(spec=SMALL)
    world.pod(1)
    for _ in range(4):
        await world.round()

    def start():
        return world.reconciler._known[KEY].memory.tuning.window_start

    world.service(spec={**SMALL, "scaling": {"maxReplicas": 5}}, generation=2, status=world.status)
    await world.round()
    assert start() < world.now
    queue = {"engine": {**SMALL["engine"], "maxQueuedRequests": 7, "scheduling": {"policy": "priority"}}}
    world.service(spec={**SMALL, **queue}, generation=3, status=world.status)
    await world.round()
    assert start() < world.now
    world.service(spec={**SMALL, "model": {"source": "builtin://other"}}, generation=4, status=world.status)
    await world.round()
    assert start() == world.now
    assert world.status["observedGeneration"] == 4


async def test_engines_of_a_release_without_an_admin_port_keep_their_limits_and_are_reported_of(world):
    limits = {"maxNumSeqs": 12, "maxNumBatchedTokens": 512, "revision": 7, "podsInForce": 1}
    world.service(spec=SMALL, status={"limits": limits})
    engine = world.pod(1, ports=[{"name": "http", "containerPort": 8000}])
    await world.round()
    assert engine.pushed == []
    assert world.condition("TuningActive")["reason"] == "NoAdminPort"
    assert world.condition("MetricsAvailable")["status"] == "True"


async def test_an_engine_that_reports_no_limits_is_scaled_but_not_tuned(world):
    world.service(spec=SMALL)
    engine = world.pod(1)
    engine.foreign = True
    await world.round()
    active = world.condition("TuningActive")
    assert (active["status"], active["reason"]) == ("False", "NoLimits")
    assert world.condition("MetricsAvailable")["status"] == "True"


async def test_a_status_that_is_older_than_its_engines_does_not_stop_the_tuning(world):
    """Writes of the status failed while limits moved on, then the operator was restarted."""
    limits = {"maxNumSeqs": 64, "maxNumBatchedTokens": 2048, "revision": 0, "podsInForce": 1}
    world.service(spec=SMALL, status={"limits": limits})
    engine = world.pod(1)
    engine.revision, engine.model.max_num_seqs = 3, 20
    await world.round()
    await world.round()
    assert engine.model.max_num_seqs == 64
    assert world.condition("TuningActive")["status"] == "True"


async def test_a_pod_alone_with_a_capacity_of_1_does_not_limit_those_that_are_not_measured_just_now(world):
    world.service(spec=SMALL, status={"desiredReplicas": 2})
    honest, liar = world.pod(1), world.pod(2)
    liar.capacity = Limits(1, 1)
    await world.round()
    honest.silent = True
    for _ in range(8):
        await world.round()
    assert world.status["limits"]["summary"] == "64/2048"


async def test_a_complaint_is_over_once_the_engine_runs_with_its_limits(world):
    limits = {"maxNumSeqs": 12, "maxNumBatchedTokens": 512, "revision": 7, "podsInForce": 0}
    world.service(spec=SMALL, status={"limits": limits})
    engine = world.pod(1)
    engine.refuse = "no answer"
    await world.round()
    await world.round()
    assert world.condition("TuningActive")["reason"] == "LimitsNotTaken"
    engine.revision = 7
    engine.model.max_num_seqs, engine.model.max_num_batched_tokens = 12, 512
    await world.round()
    assert world.condition("TuningActive")["status"] == "True"


async def test_limits_that_cannot_be_read_are_advised_and_not_set(world):
    world.service(spec={**SMALL, "slo": {"tpotP95": "50ms"}, "tuning": {"later": 1}})
    engine = world.pod(1)
    for _ in range(20):
        for _ in range(12):
            engine.model.add(120, 80)
        await world.round()
    assert engine.pushed == []
    assert world.status["decisions"][0]["applied"] is False

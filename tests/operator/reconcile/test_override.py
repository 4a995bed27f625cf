"""Limits set by hand, round by round: engines get them, tuning pauses, scaling goes on, and all ends as it was."""

from datetime import timedelta

import pytest

from inflight_settings.limits import Limits
from tests.operator.reconcile.random_fleet import RandomFleet, Tick
from tests.operator.reconcile.world import SMALL, START

TUNED = {"maxNumSeqs": 12, "maxNumBatchedTokens": 512, "revision": 7, "podsInForce": 1}
SLO = {"tpotP95": "50ms"}


def override(seconds=60.0, **limits):
    until = (START + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
    return {"tuning": {"override": {**limits, "until": until}}}


def edit(world, **spec):
    world.service(spec={**SMALL, "slo": SLO, **spec}, generation=2, status=world.status)


@pytest.fixture
def engine(world):
    world.service(spec={**SMALL, "slo": SLO}, status={"limits": TUNED})
    return world.pod(1)


async def test_a_running_engine_and_new_pods_get_the_limits_and_the_status_says_until_when(world, engine):
    await world.round()
    edit(world, **override(maxNumSeqs=4))
    await world.round()
    await world.round(0.5)
    assert (engine.model.max_num_seqs, engine.model.max_num_batched_tokens, engine.revision) == (4, 512, 8)
    config = next(one for one in world.cache.children(("team", "chat")) if one["kind"] == "ConfigMap")
    assert '"max_num_seqs": 4' in config["data"]["limits.json"]
    limits = world.status["limits"]
    assert limits["source"] == "Override"
    assert limits["override"] == {
        "until": "2026-11-20T10:01:00Z",
        "before": {"maxNumSeqs": 12, "maxNumBatchedTokens": 512},
    }
    active = world.condition("TuningActive")
    assert (active["status"], active["reason"]) == ("False", "Overridden")
    assert active["message"] == (
        "tuning is paused until 2026-11-20T10:01:00Z: spec.tuning.override holds max_num_seqs 4 and"
        " max_num_batched_tokens 512"
    )
    assert world.status["decisions"][-1]["code"] == "ByHand"


async def test_at_the_end_the_limits_before_return_tuning_measures_anew_and_the_rest_is_reported(world, engine):
    await world.round()
    edit(world, **override(seconds=20, maxNumSeqs=4, maxNumBatchedTokens=64))
    for _ in range(7):
        await world.round()
    assert (engine.model.max_num_seqs, engine.model.max_num_batched_tokens) == (12, 512)
    assert world.status["limits"]["source"] == "Tuning"
    assert "override" not in world.status["limits"]
    active = world.condition("TuningActive")
    assert (active["status"], active["reason"]) == ("True", "Measuring")
    assert active["message"].endswith(
        "; spec.tuning.override ended at 2026-11-20T10:00:20Z and has no effect: it can be removed"
    )


async def test_an_override_that_is_removed_ends_at_once(world, engine):
    await world.round()
    edit(world, **override(maxNumSeqs=4))
    await world.round()
    edit(world)
    await world.round()
    await world.round(0.5)
    assert engine.model.max_num_seqs == 12
    assert world.status["decisions"][-1]["code"] == "OverrideRemoved"


@pytest.mark.parametrize("seconds", [5, 60])
async def test_a_restart_of_the_operator_changes_neither_the_limits_nor_what_returns_at_the_end(world, engine, seconds):
    await world.round()
    edit(world, **override(seconds=seconds, maxNumSeqs=4))
    await world.round()
    world.restart()
    await world.round()
    await world.round()
    assert engine.model.max_num_seqs == (12 if seconds == 5 else 4)
    world.now += 60
    await world.round()
    await world.round(0.5)
    assert engine.model.max_num_seqs == 12


async def test_a_fault_of_the_engine_is_reported_before_the_override(world, engine):
    await world.round()
    engine.refuse = "HTTP 401"
    edit(world, **override(maxNumSeqs=4))
    for _ in range(3):
        await world.round()
    assert world.condition("TuningActive")["reason"] == "LimitsNotTaken"


async def test_a_value_above_the_capacity_is_bounded_by_it(world, engine):
    """The API server refuses such a value; with an older schema an operator may still read one."""
    await world.round()
    edit(world, **override(maxNumSeqs=9000))
    await world.round()
    await world.round(0.5)
    assert engine.model.max_num_seqs == 64


@pytest.mark.parametrize(("mode", "after"), [("Off", Limits(64, 2048)), ("Recommend", Limits(12, 512))])
async def test_it_holds_in_every_mode_and_the_mode_decides_what_follows(world, mode, after):
    world.service(
        spec={**SMALL, "slo": SLO, "tuning": {"mode": mode, **override(seconds=20, maxNumSeqs=4)["tuning"]}},
        status={"limits": TUNED},
    )
    engine = world.pod(1)
    await world.round()
    await world.round()
    assert engine.model.max_num_seqs == 4
    assert world.condition("TuningActive")["reason"] == "Overridden"
    for _ in range(6):
        await world.round()
    assert Limits(engine.model.max_num_seqs, engine.model.max_num_batched_tokens) == after


def test_replicas_follow_what_one_carries_with_the_limits_that_are_fixed():
    """The same load, with limits of its own choice and with a quarter of the slots."""
    ordered = {}
    for slots in (None, 8):
        spec = {
            "engine": {"maxNumSeqs": 64, "maxNumBatchedTokens": 2048},
            "slo": {"ttftP95": "2s", "tpotP95": "200ms"},
            "scaling": {"minReplicas": 1, "maxReplicas": 20},
        }
        if slots is not None:
            spec |= override(seconds=3600, maxNumSeqs=slots)
        fleet = RandomFleet(spec)
        for _ in range(100):
            last = fleet.tick(Tick(rate=20.0))
        ordered[slots] = last.plan.replicas
    assert ordered[8] > 2 * ordered[None]


def test_the_status_has_what_the_cost_model_would_set_meanwhile():
    spec = {"slo": {"ttftP95": "2s", "tpotP95": "30ms"}, **override(seconds=3600, maxNumSeqs=8)}
    fleet = RandomFleet(spec)
    for _ in range(60):
        last = fleet.tick(Tick(rate=10.0))
    tuned = RandomFleet({"slo": spec["slo"]})
    for _ in range(60):
        tuned.tick(Tick(rate=10.0))
    assert last.plan.limits.limits.max_num_seqs == 8
    assert last.plan.modelled is not None
    assert abs(last.plan.modelled.max_num_seqs / tuned.memory.limits.limits.max_num_seqs - 1) < 0.3
    shown = tuned.rounds[-1].plan.modelled
    assert shown is not None
    assert shown == tuned.memory.tuning.modelled

"""The canary pod, which tries limits for all: its limits and revision, the status, and its end."""

import pytest

from inflight_operator.decide.tuning.types import TuningView
from inflight_operator.reconcile import limits
from tests.operator.reconcile.world import SMALL

SLO = {"ttftP95": "2s", "tpotP95": "60ms"}
SPEC = {**SMALL, "slo": SLO, "scaling": {"minReplicas": 2, "maxReplicas": 2}}
SMALL_LIMITS = {"maxNumSeqs": 6, "maxNumBatchedTokens": 64, "revision": 7, "podsInForce": 2}


@pytest.fixture
def pods(world):
    """Two engines that report the costs of their steps, with limits far below what the model finds."""
    world.service(spec=SPEC, status={"limits": SMALL_LIMITS, "desiredReplicas": 2})
    engines = [world.pod(1), world.pod(2)]
    for engine in engines:
        engine.model.reported_cost = engine.model.true_cost
        engine.model.max_num_seqs, engine.model.max_num_batched_tokens, engine.revision = 6, 64, 7
    return engines


async def traffic(world, pods, rounds, until=lambda: False):
    """Requests for every pod, few enough to keep the targets; returns whether `until` came true."""
    for _ in range(rounds):
        for engine in pods:
            for _ in range(4):
                engine.model.add(30, 12)
        await world.round()
        if until():
            return True
    return False


def canary(world):
    return (world.status.get("limits") or {}).get("canary")


async def test_one_pod_goes_first_with_a_revision_of_its_own_and_all_follow_with_the_next(world, pods):
    assert await traffic(world, pods, 60, lambda: canary(world) is not None)
    shown = canary(world)
    await world.round(0.5)
    first = pods[0] if shown["pod"] == "chat-1" else pods[1]
    other = pods[1] if first is pods[0] else pods[0]
    assert (first.model.max_num_seqs, first.revision) == (shown["maxNumSeqs"], 8)
    assert (other.model.max_num_seqs, other.revision) == (6, 7)
    assert (world.status["limits"]["maxNumSeqs"], world.status["limits"]["revision"]) == (6, 7)
    assert await traffic(world, pods, 40, lambda: canary(world) is None)
    await world.round(0.5)
    assert world.status["limits"]["maxNumSeqs"] == shown["maxNumSeqs"]
    assert [engine.revision for engine in pods] == [9, 9]
    changes = [one["reason"] for one in world.status["decisions"] if one["kind"] == "Tuning"]
    assert f"on pod {shown['pod']} first" in changes[0]
    assert f"all pods follow {shown['pod']}" in changes[-1]


async def test_pods_are_compared_at_the_end_of_a_window_only(world, pods, monkeypatch):
    made, real = [], limits.tuning_view

    def view(window, start, now, slo, names):
        made.append((now - start >= world.every.tuning.window, real(window, start, now, slo, names)))
        return made[-1][1]

    def compared(one):
        try:
            TuningView.by_pod.__get__(one)
        except AttributeError:
            return False
        return True

    assert await traffic(world, pods, 60, lambda: canary(world) is not None)
    monkeypatch.setattr(limits, "tuning_view", view)
    await traffic(world, pods, 20)
    assert {full for full, one in made if compared(one)} == {True}
    assert not all(full for full, _ in made)


async def test_a_restart_of_the_operator_ends_a_canary_with_the_limits_of_the_service(world, pods):
    assert await traffic(world, pods, 60, lambda: canary(world) is not None)
    await world.round(0.5)
    world.restart()
    await world.round()
    await world.round()
    assert canary(world) is None
    assert [engine.model.max_num_seqs for engine in pods] == [6, 6]
    assert pods[0].revision == pods[1].revision == world.status["limits"]["revision"] > 8


async def test_switching_tuning_to_recommend_ends_a_canary(world, pods):
    assert await traffic(world, pods, 60, lambda: canary(world) is not None)
    world.service(spec={**SPEC, "tuning": {"mode": "Recommend"}}, generation=2, status=world.status)
    await world.round()
    await world.round(0.5)
    assert canary(world) is None
    assert [engine.model.max_num_seqs for engine in pods] == [6, 6]
    assert [engine.revision for engine in pods] == [9, 9]


async def test_revisions_only_rise_whatever_happens_to_a_canary(world, pods):
    seen = {id(engine): [] for engine in pods}
    for number in range(6):
        await traffic(world, pods, 8)
        if number % 2:
            pods[0].model.per_decode *= 1.5
        for engine in pods:
            seen[id(engine)].append([one.revision for one, _ in engine.pushed])
    for revisions in seen.values():
        assert all(later > earlier for earlier, later in zip(revisions[-1], revisions[-1][1:], strict=False))

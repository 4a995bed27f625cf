"""A bounded run of the fuzzer, in which everything that it is for really happened."""

import math
from typing import get_args

import pytest

from inflight_engine.scheduling.policies import POLICIES
from inflight_engine.scheduling.preemption import VICTIMS
from inflight_settings.scheduling import PreemptionMode
from tests.engine import fuzz
from tests.engine.scheduling.workload import random_fields

STEPS = 50_000
ALWAYS = (
    "starts",
    "idle",
    "chunked",
    "failed",
    "failed_copies",
    "failed_chunks",
    "misled",
    "throttled",
    "passed",
    "preemptions",
    "stored",
    "loaded",
    "damaged",
    "hit_tokens",
    "cancelled_waiting",
    "cancelled_prefilling",
    "cancelled_decoding",
    "cancelled_preempted",
    "limit_changes",
    "rate_changes",
    "weight_changes",
    "prefill_cost_changes",
    "late_starts",
    "ahead",
    "late_tokens",
    "put_back",
    "waited",
    "forced",
    "unforced",
    "extensions",
)


@pytest.mark.slow
def test_random_steps_break_no_rule_and_everything_happens():
    run = fuzz.Fuzz(seed=1)
    run.run(STEPS, seconds=math.inf)
    assert [name for name in ALWAYS if run.counts[name] == 0] == []
    assert run.counts["preemptions"] > run.counts["steps"] / 200


def test_every_policy_victim_rule_and_way_of_preemption_is_drawn():
    drawn = [random_fields(fuzz.Random(seed), fuzz.Random(seed)) for seed in range(400)]
    assert {each["policy"] for each in drawn} == set(POLICIES)
    assert {each["preemption_victim"] for each in drawn} == set(VICTIMS)
    assert {each["preemption"] for each in drawn} == set(get_args(PreemptionMode))
    assert {each["prefix_caching"] for each in drawn} == {True, False}
    assert {each["lookahead"] for each in drawn} == {True, False}
    assert {len(each["classes"]) for each in drawn} == {1, 2, 3}


def test_a_broken_rule_ends_the_run_with_what_shows_it_again(monkeypatch, capsys):
    workload = fuzz.Workload(7)
    monkeypatch.setattr(type(workload.driver.scheduler), "num_running", property(lambda scheduler: -1))
    assert fuzz.main(["--seed", "7", "--steps", "500"]) == 1
    told = capsys.readouterr().err
    assert "num_running is wrong" in told
    assert "--seed 7 --steps 500" in told
    assert f"configuration: {workload.fields}" in told


def test_the_number_of_steps_is_what_was_asked_for_and_the_same_seed_gives_the_same_run(capsys):
    first, second = fuzz.Fuzz(3), fuzz.Fuzz(3)
    first.run(600, 60)
    second.run(600, 60)
    assert first.counts == second.counts
    assert first.counts["steps"] >= 600

"""`plan --disaggregate`: whether a prefill set pays."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from inflight_settings.limits import Limits
from inflight_simulator.cli import main
from inflight_simulator.fleet.commands import apart
from inflight_simulator.fleet.commands.apart import Comparison, Pair, Sets, compare_sets
from inflight_simulator.fleet.commands.plan_command import apart_verdict
from inflight_simulator.fleet.commands.replica_file import ReplicaFile, write_replica
from inflight_simulator.fleet.config import REFERENCE_COST, FleetConfig, PrefillSet
from tests.simulator.support import simulate

GATEWAY = ["--routing", "gateway", "--policy", "deadline", "--ttft-rule", "prefill", "--max-replicas", "20"]


@pytest.fixture
def traffic(tmp_path):
    """Writes a file of requests of lognormal sizes that come at random."""

    def write(count, rate, prompt, output):
        random = np.random.default_rng(0)
        times = np.cumsum(random.exponential(1 / rate, count))
        prompts, outputs = (random.lognormal(np.log(mean), 0.3, count).astype(int) + 2 for mean in (prompt, output))
        path = tmp_path / "arrivals.csv"
        rows = [f"{at:.3f},{each},{tokens}" for at, each, tokens in zip(times, prompts, outputs, strict=True)]
        path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
        return str(path)

    return write


def test_with_long_prompts_and_a_target_near_an_empty_step_fixed_needs_fewer_replicas(traffic, capsys):
    arrivals = traffic(80, 8, 3000, 100)
    flags = ["plan", arrivals, *GATEWAY, "--tpot", "9ms", "--disaggregate", "Fixed"]
    (planned,) = simulate(capsys, *flags)["replicas"]
    (found,) = planned["apart"]
    assert found["pays"]
    # With fewer requests at once than the plan's limits have, one set needs fewer replicas.
    assert found["needed"] == found["fewest"] - 1 < found["fewest"] < planned["checked"]["replicas"]
    for pair in found["pairs"]:
        assert pair["one"]["answer"] == pair["two"]["answer"] + pair["two"]["prefill"]
    fewest, needed = found["pairs"]
    assert fewest["one"]["lowest"] >= 0.99
    assert needed["one"]["highest"] < 0.99 <= needed["two"]["lowest"]
    assert needed["two"]["tpot_p95"] < needed["one"]["tpot_p95"]
    assert needed["two"]["limits"][1] < needed["one"]["limits"][1] < needed["two"]["prefill_limits"][1]
    assert needed["two"]["handed_over"] > 0.9

    # The same rates, but keys and values come slower than they are computed.
    (slow,) = simulate(capsys, *flags, "--transfer-rate", "100")["replicas"]
    assert not slow["apart"][0]["pays"]


def test_with_short_prompts_neither_mode_pays(traffic, capsys):
    arrivals = traffic(200, 40, 800, 60)
    assert (
        main(["plan", arrivals, *GATEWAY, "--tpot", "20ms", "--disaggregate", "Auto", "--disaggregate", "Fixed"]) == 0
    )
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    auto, fixed = (next(line for line in lines if line.startswith(f"apart, {mode} ")) for mode in ("Auto", "Fixed"))
    assert auto.endswith("does not pay: no request is worth handing over")
    assert "does not pay: with 2 replicas " in fixed
    one, auto_split, same, fixed_split = (line for line in lines if " in target, TTFT p95 " in line)
    assert one == same
    assert one.startswith("one set of 2 (")
    assert auto_split.startswith("1 (")
    assert auto_split.endswith(", 0.0% handed over")
    assert " for prompts and 1 (" in fixed_split


def test_one_replica_cannot_be_split(traffic, capsys):
    assert main(["plan", traffic(20, 1, 300, 20), *GATEWAY, "--disaggregate", "Auto"]) == 0
    assert "does not pay: one replica is enough, and cannot be split" in capsys.readouterr().out


def test_without_a_number_that_is_enough_as_one_set_a_split_is_looked_for(traffic, capsys):
    flags = ["plan", traffic(80, 8, 3000, 100), *GATEWAY[:-1], "4", "--tpot", "9ms", "--disaggregate", "Fixed"]
    assert main(flags) == 1
    text = capsys.readouterr().out
    assert "no number that was tried keeps 99% of the requests in target" in text
    assert (
        "pays: 4 replicas keep 99% of the requests in target with each seed, no number that was tried does as one set"
    ) in text


def test_a_target_that_no_request_keeps_is_not_compared(traffic, capsys):
    flags = ["plan", traffic(20, 1, 300, 20), *GATEWAY, "--tpot", "1ms", "--disaggregate", "Auto", "--json"]
    assert main(flags) == 1
    assert json.loads(capsys.readouterr().out)["replicas"][0]["apart"] == []


def test_where_neither_keeps_the_attainment_the_most_replicas_are_compared(tmp_path, capsys):
    path = tmp_path / "arrivals.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,300,10\n0.5,300,10\n1,12000,10\n2,300,10\n")
    flags = ["plan", str(path), "--routing", "gateway", "--ttft", "60ms", "--long-ttft", "61ms", "--max-replicas"]
    assert main([*flags, "8", "--disaggregate", "Fixed"]) == 1
    text = capsys.readouterr().out
    assert "does not pay: with 4 replicas 75.00% of the requests are in target, 75.00% as one set" in text
    assert "; no split that was tried keeps 99%" in text
    assert main([*flags, "1", "--disaggregate", "Fixed"]) == 1
    assert "does not pay: one replica cannot be split" in capsys.readouterr().out


@pytest.fixture
def compared(monkeypatch):
    """Compares fleets of which the shares in target are given: of one set and of splits, by replicas and seed."""

    def compare(one_share, split_share, guess, most=20):
        runs = []

        def run(requests, config, scaler):
            prefill = 0 if config.prefill is None else config.prefill.replicas
            count = scaler.count + prefill
            runs.append((count, prefill))
            share = (split_share if prefill else one_share)(count, config.seed)
            reads = np.ones(50) if prefill else None
            return SimpleNamespace(attainment=share, ttft=np.ones(1), tpot=np.ones(1), reads=reads)

        monkeypatch.setattr(apart, "simulate_fleet", run)
        one = FleetConfig(limits=Limits(2, 512), max_replicas=most)
        two = replace(one, prefill=PrefillSet("Fixed", 1, 1e5, Limits(4, 4096)))
        (found,) = compare_sets(range(100), one, [two], 0.99, guess)
        return found, runs

    return compare


def test_one_set_needs_as_many_replicas_as_keep_the_attainment_with_each_seed(compared):
    found, _ = compared(lambda count, seed: 0.98 if count < 4 + (seed == 2) else 1.0, lambda count, seed: 0.5, 9)
    assert found.fewest == 5
    assert found.needed is None
    assert not found.pays


@pytest.mark.parametrize("largest_gap", [7, 20])
def test_one_set_never_needs_more_replicas_than_it_is_shown_to_need(compared, largest_gap):
    """The share in target falls from 4 replicas to 5."""
    found, _ = compared(
        lambda count, seed: 0.5 if count < 4 or 5 <= count <= largest_gap else 0.995,
        lambda count, seed: 1.0 if count >= 4 else 0.5,
        6,
    )
    assert found.fewest == found.needed == 4
    assert "one set needs" not in apart_verdict(found, 0.99)


def test_one_replica_that_is_enough_with_each_seed_is_not_split(compared):
    found, runs = compared(lambda count, seed: 1.0, lambda count, seed: 1.0, 1)
    assert (found.fewest, found.pairs) == (1, ())
    assert runs == [(1, 0)] * 3


def test_a_single_replica_is_not_simulated(compared):
    found, runs = compared(lambda count, seed: 0.5, lambda count, seed: 1.0, 1, most=1)
    assert apart_verdict(found, 0.99) == "one replica cannot be split"
    assert not runs


@pytest.mark.parametrize("best", [Limits(2, 512), Limits(4, 512), Limits(4, 2048)])
def test_two_sets_without_limits_of_their_own_have_those_of_one_or_the_best_for_answers_and_prompts(monkeypatch, best):
    def run(requests, config, scaler):
        share = 0.5 if config.prefill is None or config.limits != best else 1.0
        return SimpleNamespace(attainment=share, ttft=np.ones(1), tpot=np.ones(1), reads=np.ones(50))

    monkeypatch.setattr(apart, "simulate_fleet", run)
    one = FleetConfig(limits=Limits(2, 512), max_replicas=4)
    two = replace(one, limits=Limits(4, 64), prefill=PrefillSet("Auto", 1, 1e5))
    (found,) = compare_sets(range(100), one, [two], 0.99, 2)
    assert [pair.two.limits for pair in found.pairs] == [(best.max_num_seqs, best.max_num_batched_tokens)]
    assert found.pays


def sets(prefill, lowest, highest, handed_over=0.5):
    return Sets(4 - prefill, prefill, lowest, highest, 0.1, 0.01, handed_over, (8, 512), (8, 512) if prefill else None)


def verdict(one, two, handed_over=0.5, needed=4):
    """Returns whether a split of four replicas pays with 100 requests, and the sentence."""
    pair = Pair.of(sets(0, *one), sets(1, *two, handed_over), 100)
    return pair.pays, apart_verdict(Comparison("Auto", 4, needed, (pair,), pair.pays), 0.99)


NOISE = ": no more than the noise of 3 seeds"


@pytest.mark.parametrize(
    ("one", "two", "pays", "ends"),
    [
        ((0.96, 0.97), (0.99, 1.0), True, "97.00% as one set"),
        ((0.96, 0.97), (0.98, 1.0), False, "97.00% as one set: one request more"),
        ((0.97, 0.97), (0.98, 0.98), False, "97.00% as one set: one request more"),
        ((0.97, 0.98), (0.98, 0.99), False, NOISE),
        ((0.97, 0.98), (0.9, 0.95), False, "98.00% as one set"),
    ],
)
def test_a_split_pays_where_its_worst_seed_is_two_requests_above_the_best_one_of_one_set(one, two, pays, ends):
    found, text = verdict(one, two)
    assert found == pays
    assert text.startswith("with 4 replicas ")
    assert text.endswith(ends)


def test_what_is_not_handed_over_gains_nothing():
    for one, two in (((1.0, 1.0), (1.0, 1.0)), ((0.9, 0.9), (1.0, 1.0))):
        assert verdict(one, two, handed_over=0.0) == (False, "no request is worth handing over")


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--disaggregate", "Auto"], "--disaggregate needs --routing gateway"),
        (["--routing", "gateway", "--transfer-rate", "1e5"], "--transfer-rate needs --disaggregate"),
    ],
)
def test_flags_that_say_too_little_are_refused(traffic, flags, error, capsys):
    assert main(["plan", traffic(3, 1, 100, 10), *flags]) == 2
    assert error in capsys.readouterr().err


def test_a_replica_of_unknown_speed_of_copies_needs_a_rate(traffic, tmp_path, capsys):
    file = tmp_path / "mine.json"
    write_replica(file, ReplicaFile(replace(REFERENCE_COST, copied_token_s=0.0), 400_000))
    flags = ["plan", traffic(3, 1, 100, 10), "--replica", str(file), *GATEWAY, "--disaggregate", "Auto"]
    assert main(flags) == 2
    assert "--disaggregate needs --transfer-rate: the cost of mine has no copied_token_s" in capsys.readouterr().err
    assert main([*flags, "--transfer-rate", "1e5"]) == 0

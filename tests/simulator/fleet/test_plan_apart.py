"""`plan --disaggregate`: whether a prefill set pays."""

import json
from dataclasses import replace

import numpy as np
import pytest

from inflight_simulator.cli import main
from inflight_simulator.fleet.commands.apart import Comparison, Pair, Sets
from inflight_simulator.fleet.commands.plan_command import apart_verdict
from inflight_simulator.fleet.commands.replica_file import ReplicaFile, write_replica
from inflight_simulator.fleet.config import REFERENCE_COST
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
    assert found["needed"] < found["fewest"] == planned["checked"]["replicas"]
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
    flags = ["plan", traffic(80, 8, 3000, 100), *GATEWAY[:-1], "6", "--tpot", "9ms", "--disaggregate", "Fixed"]
    assert main(flags) == 1
    text = capsys.readouterr().out
    assert "no number that was tried keeps 99% of the requests in target" in text
    assert "pays: 4 replicas keep 99% of the requests in target, no number that was tried does as one set" in text


def test_a_target_that_no_request_keeps_is_not_compared(traffic, capsys):
    flags = ["plan", traffic(20, 1, 300, 20), *GATEWAY, "--tpot", "1ms", "--disaggregate", "Auto", "--json"]
    assert main(flags) == 1
    assert json.loads(capsys.readouterr().out)["replicas"][0]["apart"] == []


def sets(prefill, lowest, highest, handed_over=0.5):
    return Sets(4 - prefill, prefill, lowest, highest, 0.1, 0.01, handed_over, (8, 512), (8, 512) if prefill else None)


@pytest.mark.parametrize(
    ("one", "two", "better"),
    [((0.97, 0.98), (0.985, 0.99), True), ((0.97, 0.98), (0.98, 0.99), False), ((0.97, 0.98), (0.9, 0.95), False)],
)
def test_a_split_is_better_where_its_worst_seed_is_above_the_best_one_of_one_set(one, two, better):
    pair = Pair(sets(0, *one), sets(1, *two))
    assert pair.two_better == better
    text = apart_verdict(Comparison("Auto", 4, None, (pair,), better), 0.99)
    assert text.startswith("with 4 replicas ")
    assert ("noise of 3 seeds" in text) == (two == (0.98, 0.99))


def test_what_is_not_handed_over_gains_nothing():
    pair = Pair(sets(0, 1.0, 1.0), sets(1, 1.0, 1.0, handed_over=0.0))
    assert apart_verdict(Comparison("Auto", 4, 4, (pair,), False), 0.99) == "no request is worth handing over"


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

"""Host memory behind the KV cache of simulated replicas."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_settings.limits import Limits
from inflight_simulator.arrivals import Arrival
from inflight_simulator.cli import main
from inflight_simulator.continuous import simulate_continuous
from inflight_simulator.cost import load_rates
from inflight_simulator.fleet.config import REFERENCE_COST, FleetConfig, ReplicaModel
from inflight_simulator.fleet.replicas.replica import scheduler_config
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import run_fleet, simulate_fleet
from inflight_simulator.fleet.view import Fixed
from tests.simulator.fleet.test_naive import Looks

BLOCK, TURN = 8, 40


def conversations(count, turns, *, rate, seed, most_output=60):
    """Turns of conversations in random order, each with the prompts of all before it."""
    random = np.random.default_rng(seed)
    order = random.permutation(np.repeat(np.arange(count), turns))
    arrival_s = np.cumsum(random.exponential(1 / rate, len(order)))
    done, arrivals = [0] * count, []
    for at, number in zip(arrival_s.tolist(), order.tolist(), strict=True):
        done[number] += 1
        hash_ids = tuple(range(100 * number, 100 * number + done[number]))
        output = int(random.integers(1, most_output))
        arrivals.append(Arrival(at, TURN * done[number], output, hash_ids=hash_ids, shared_block_tokens=TURN))
    return arrivals


def requests_of(arrivals):
    return replace(Requests.of(arrivals), hash_tokens=TURN)


def model(kv_blocks, host_blocks, *, copied_token_s=2.6e-6):
    cost = replace(REFERENCE_COST, copied_token_s=copied_token_s)
    return ReplicaModel(cost, kv_blocks * BLOCK, BLOCK, host_tokens=host_blocks * BLOCK, noise=0.0)


def same(one, other):
    np.testing.assert_array_equal(one.ttft, other.ttft)
    np.testing.assert_array_equal(one.tpot, other.tpot)
    return one.prefix_hits == other.prefix_hits


def of_the_engines_scheduler(arrivals, config):
    """The same requests step by step, by the scheduler as the engine has it."""
    longest = max(each.total_tokens for each in arrivals)
    scheduling = scheduler_config(config, longest, prefix_caching=True)
    run = simulate_continuous(arrivals, scheduling, config.replica.cost, rates=load_rates(config.replica.cost))
    return {each.request_id: each for each in run.outcomes}, run


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 6),
    st.floats(1, 200),
    st.integers(40, 120),
    st.sampled_from([0, 7, 60, 400]),
    st.sampled_from([0.0, 2.6e-6, 2.5e-5, 1e-3]),
    st.integers(0, 10**6),
)
def test_a_replica_serves_each_request_when_the_engines_scheduler_does(
    count, turns, rate, kv_blocks, host_blocks, copied_token_s, seed
):
    arrivals = conversations(count, turns, rate=rate, seed=seed)
    replica = model(kv_blocks, host_blocks, copied_token_s=copied_token_s)
    config = FleetConfig(replica=replica, limits=Limits(6, 64))
    run = simulate_fleet(requests_of(arrivals), config, Fixed(1))
    outcomes, other = of_the_engines_scheduler(arrivals, config)
    for number, each in enumerate(arrivals):
        if number not in outcomes:
            assert np.isnan(run.ttft[number])
            continue
        ended = each.arrival_s + run.ttft[number] + run.tpot[number] * max(1, each.output_tokens - 1)
        assert run.ttft[number] == pytest.approx(outcomes[number].first_token_s - each.arrival_s, abs=1e-9)
        assert ended == pytest.approx(outcomes[number].finished_s, abs=1e-9)
    assert run.prefix_hits == other.prefix_hits
    assert run.preemptions == other.num_preemptions


def test_prefixes_that_the_cache_gave_up_are_loaded_where_that_is_cheaper_than_computing_them():
    arrivals = conversations(30, 4, rate=4, seed=1, most_output=8)
    requests = requests_of(arrivals)

    def run(host_blocks, copied_token_s):
        config = FleetConfig(replica=model(60, host_blocks, copied_token_s=copied_token_s))
        return simulate_fleet(requests, config, Fixed(1))

    without, cheap, dear = run(0, 2.6e-6), run(2000, 2.6e-6), run(2000, 1e-3)
    assert cheap.prefix_hits > 2 * without.prefix_hits
    assert cheap.ttft.mean() < without.ttft.mean()
    assert dear.prefix_hits == without.prefix_hits
    np.testing.assert_allclose(dear.ttft, without.ttft, rtol=0, atol=1e-9)


def test_more_host_memory_finds_no_less():
    requests = requests_of(conversations(30, 5, rate=4, seed=2, most_output=8))
    hits = [
        simulate_fleet(requests, FleetConfig(replica=model(60, host_blocks)), Fixed(1)).prefix_hits
        for host_blocks in (0, 100, 300, 3000)
    ]
    assert hits == sorted(hits)
    assert hits[-1] > hits[1] > hits[0]


@pytest.fixture
def files(tmp_path):
    """A trace of conversations in Mooncake's format, and a replica whose cache holds a few of them."""
    trace, replica = tmp_path / "trace.jsonl", tmp_path / "small.json"
    random = np.random.default_rng(3)
    rows = []
    for turn in range(4):
        for number in range(40):
            ids = [*range(100 * number, 100 * number + 3 * (turn + 1))]
            at = int(1000 * (10 * turn + number / 4 + random.random() / 10))
            rows.append({"timestamp": at, "input_length": 512 * len(ids), "output_length": 20, "hash_ids": ids})
    rows.sort(key=lambda row: row["timestamp"])
    trace.write_text("\n".join(map(json.dumps, rows)))
    cost = {
        "base_s": 0.005,
        "decode_seq_s": 1e-5,
        "prefill_token_s": 1e-4,
        "decode_kv_token_s": 1e-8,
        "prefill_context_token_s": 1e-9,
        "copied_token_s": 2e-6,
    }
    replica.write_text(json.dumps({"cost": cost, "kv_tokens": 30_000, "kv_bytes_per_token": 2**17}))
    return trace, replica


def test_a_plan_says_what_host_memory_brings(files, capsys):
    trace, replica = files
    sizes = ["--host-memory", "1Gi", "--host-memory", "64Gi"]
    flags = ["plan", str(trace), "--replica", str(replica), *sizes, "--ttft", "400ms"]
    assert main([*flags, "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)["replicas"][0]["checked"]
    small, large = checked["host_memory"]
    assert (small["tokens"], large["tokens"]) == (2**13, 2**19)
    assert checked["served"]["hit_rate"] <= small["served"]["hit_rate"] < large["served"]["hit_rate"] - 0.2
    assert large["served"]["ttft_p95"] < checked["served"]["ttft_p95"]
    assert large["replicas"] < checked["replicas"]
    assert main(flags) == 0
    text = capsys.readouterr().out
    hits, many = large["served"]["hit_rate"], checked["replicas"]
    assert f"64 GiB, 524,288 tokens: {hits:.1%} of prompt tokens are found, TTFT p50" in text
    assert f"with {many} replicas" in text


def test_a_plan_without_shared_prompts_says_that_host_memory_brings_nothing(tmp_path, capsys):
    path = tmp_path / "plain.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,5\n1,100,5\n")
    assert main(["plan", str(path), "--host-memory", "64Gi", "--json"]) == 0
    printed = capsys.readouterr()
    assert "brings nothing here" in printed.err
    assert json.loads(printed.out)["replicas"][0]["checked"]["host_memory"] == []


def test_host_memory_of_unknown_tokens_or_without_bounds_is_refused(files, capsys):
    trace, replica = files
    plan = ["plan", str(trace), "--replica", str(replica), "--host-memory"]
    assert main([*plan, "1000000Ti"]) == 2
    assert "at most 131072000000000 bytes for small" in capsys.readouterr().err
    file = json.loads(replica.read_text())
    del file["kv_bytes_per_token"]
    replica.write_text(json.dumps(file))
    assert main([*plan, "1Gi"]) == 2
    assert "kv_bytes_per_token in the file of small" in capsys.readouterr().err


def test_a_plan_says_what_a_disk_brings_beside_host_memory_alone(files, capsys):
    trace, path = files
    replica = json.loads(path.read_text()) | {"disk_read_token_s": 1e-5, "disk_write_token_s": 2e-5}
    path.write_text(json.dumps(replica))
    flags = ["plan", str(trace), "--replica", str(path), "--host-memory", "1Gi", "--disk", "64Gi", "--ttft", "400ms"]
    assert main([*flags, "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)["replicas"][0]["checked"]
    alone, behind = checked["host_memory"]
    assert (alone["tokens"], alone["disk_tokens"]) == (2**13, 0)
    assert (behind["tokens"], behind["disk_tokens"]) == (2**13, 2**19)
    assert alone["served"]["hit_rate"] < behind["served"]["hit_rate"] - 0.2
    assert behind["served"]["ttft_p95"] < alone["served"]["ttft_p95"]
    assert main(flags) == 0
    hits = behind["served"]["hit_rate"]
    text = f"1 GiB, 8,192 tokens and a disk of 64 GiB, 524,288 tokens: {hits:.1%} of prompt tokens are found"
    assert text in capsys.readouterr().out


def test_a_plan_with_a_disk_behind_nothing_or_of_unknown_rates_is_refused(files, capsys):
    trace, path = files
    plan = ["plan", str(trace), "--replica", str(path), "--disk", "1Ti"]
    assert main(plan) == 2
    assert "--disk needs --host-memory" in capsys.readouterr().err
    assert main([*plan, "--host-memory", "1Gi"]) == 2
    assert "disk_read_token_s and disk_write_token_s in the file of small" in capsys.readouterr().err


def test_the_metrics_of_a_replica_with_host_memory_change_nothing():
    requests = requests_of(conversations(20, 4, rate=50, seed=5))

    config = FleetConfig(replica=model(90, 200), limits=Limits(8, 64))
    plain, looked = run_fleet(requests, config, []), run_fleet(requests, config, [Looks(0.013)])
    assert same(plain, looked)

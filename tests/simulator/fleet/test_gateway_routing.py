"""The gateway in front of a simulated fleet, and prefix caches where the trace says what prompts share."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from inflight_settings.limits import Limits
from inflight_simulator.cli import main
from inflight_simulator.fleet.commands.traffic import doubled
from inflight_simulator.fleet.config import ROUTINGS, FleetConfig, ReplicaModel, undivided
from inflight_simulator.fleet.control import view_of
from inflight_simulator.fleet.requests import Requests, read_requests
from inflight_simulator.fleet.run import run_fleet, simulate_fleet
from inflight_simulator.fleet.view import Fixed
from tests.simulator.fleet.test_naive import random_requests

GATEWAY = FleetConfig(routing="gateway", start_up=undivided(5.0))
BLOCK = 512

BEFORE = {
    "round-robin": (7.263744976090997, 2.362153920565104),
    "least-requests": (7.7489633444558415, 2.3838201276486277),
    "least-work": (7.214082438818981, 2.369683858465014),
}
"""Sums of TTFT and TPOT, of the simulator before it had prefix caches."""


def conversations(count, turns, *, every=0.5, new_blocks=4, output=20, seed=0):
    """Conversations whose turns each repeat all before and add some blocks, in random order of time."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        times = np.sort(random.uniform(0, count * turns * every / 4, turns))
        for turn, time in enumerate(times.tolist()):
            blocks = (turn + 1) * new_blocks
            ids = tuple(number * 1000 + block for block in range(blocks))
            rows.append((time, blocks * BLOCK, output, ids))
    rows.sort()
    arrival_s, prompts, outputs, hash_ids = zip(*rows, strict=True)
    return Requests(np.array(arrival_s), np.array(prompts), np.array(outputs), hash_ids)


def without_hashes(requests):
    return Requests(requests.arrival_s, requests.prompt_tokens, requests.output_tokens)


@pytest.mark.parametrize("routing", ["round-robin", "least-requests", "least-work"])
def test_a_trace_without_hash_ids_gives_the_same_numbers_as_before_there_were_prefix_caches(routing):
    run = simulate_fleet(random_requests(400, 30, 1), FleetConfig(routing=routing, seed=3), Fixed(3))
    assert run.prefix_hit_rate is None
    assert float(run.ttft.sum()) == pytest.approx(BEFORE[routing][0], abs=1e-9)
    assert float(run.tpot.sum()) == pytest.approx(BEFORE[routing][1], abs=1e-9)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_prompts_that_share_nothing_cost_what_they_cost_without_a_prefix_cache(routing):
    requests = conversations(30, 1, every=0.2)
    hashed = simulate_fleet(requests, replace(GATEWAY, routing=routing), Fixed(2))
    plain = simulate_fleet(without_hashes(requests), replace(GATEWAY, routing=routing), Fixed(2))
    assert hashed.prefix_hit_rate == 0.0
    np.testing.assert_allclose(hashed.ttft, plain.ttft, rtol=0, atol=1e-9)
    np.testing.assert_allclose(hashed.tpot, plain.tpot, rtol=0, atol=1e-9)


def test_one_replica_with_room_for_all_computes_only_what_is_new():
    requests = conversations(4, 5)
    config = replace(GATEWAY, replica=ReplicaModel(noise=0.0))
    run = simulate_fleet(requests, config, Fixed(1))
    new = 4 * BLOCK * len(requests)
    hits = 1 - new / requests.prompt_tokens.sum()
    # A prompt that is all in the cache computes its last block of 16 tokens; none is here.
    assert run.prefix_hit_rate == pytest.approx(hits, abs=0.001)
    plain = simulate_fleet(without_hashes(requests), config, Fixed(1))
    assert run.ttft.sum() < 0.7 * plain.ttft.sum()


def test_a_small_kv_cache_forgets_conversations():
    requests = conversations(20, 5)
    small = replace(GATEWAY, replica=ReplicaModel(kv_tokens=40_000))
    few = simulate_fleet(requests, small, Fixed(1)).prefix_hit_rate
    assert few < 0.6 * simulate_fleet(requests, GATEWAY, Fixed(1)).prefix_hit_rate


def test_the_gateway_finds_more_prefixes_and_is_faster_than_routing_that_knows_of_none():
    requests = conversations(24, 5, every=0.12)
    runs = {routing: simulate_fleet(requests, replace(GATEWAY, routing=routing), Fixed(4)) for routing in ROUTINGS}
    others = [run for routing, run in runs.items() if routing != "gateway"]
    assert runs["gateway"].prefix_hit_rate > 1.5 * max(run.prefix_hit_rate for run in others)
    assert np.nanpercentile(runs["gateway"].ttft, 95) < min(np.nanpercentile(run.ttft, 95) for run in others)


@dataclass
class Watch:
    """Looks once a second."""

    seen: list
    interval_s: float = 1.0

    def update(self, fleet, now):
        self.seen.append((now, view_of(fleet, now), [pod.replica.num_waiting for pod in fleet.live]))


@dataclass
class ScaleOut:
    """So many replicas from the first update on."""

    count: int
    interval_s: float = 1.0

    def update(self, fleet, now):
        fleet.order(self.count, now)


def flood(count=600, seconds=12.0, prompt=2000, output=30):
    return Requests(np.arange(count) * seconds / count, np.full(count, prompt), np.full(count, output))


def test_what_waits_at_the_gateway_goes_to_replicas_that_have_just_come():
    """1 -> 3 replicas after a burst: what routing has bound to the first one stays there."""
    config = replace(GATEWAY, initial_replicas=1)
    found = {}
    for routing in ("least-work", "gateway"):
        run = run_fleet(flood(200, 4.0), replace(config, routing=routing), [ScaleOut(3)])
        found[routing] = np.nanpercentile(run.ttft, 95)
    assert found["gateway"] < 0.75 * found["least-work"]


def test_no_replica_idles_and_little_waits_in_engines_while_the_gateway_holds_requests():
    seen = []
    run_fleet(flood(), replace(GATEWAY, initial_replicas=2), [Watch(seen)])
    holding = [(view, waiting) for now, view, waiting in seen if view.gateway_queue and now > 1]
    assert len(holding) > 5
    for view, waiting in holding:
        assert all(pod.sample.running + pod.sample.waiting > 0 for pod in view.pods)
        # About half a second of prefill, of prompts of 2,000 tokens.
        assert max(waiting) <= 15


def test_one_replica_behind_the_gateway_finishes_an_overload_as_soon_as_without_it():
    requests = flood(300, 3.0)
    ends = []
    for routing in ("round-robin", "gateway"):
        run = simulate_fleet(requests, replace(GATEWAY, routing=routing, replica=ReplicaModel(noise=0.0)), Fixed(1))
        ends.append(np.max(run.arrival_s + run.ttft + run.tpot * (requests.output_tokens - 1)))
    assert ends[1] == pytest.approx(ends[0], rel=0.03)


def test_engines_report_first_tokens_from_when_they_got_the_request_and_not_from_its_arrival_at_the_gateway():
    seen = []
    run = run_fleet(flood(), replace(GATEWAY, initial_replicas=2), [Watch(seen)])
    engine = [pod.sample.ttft.mean for pod in seen[-1][1].pods]
    assert max(engine) < 0.5 * np.nanmean(run.ttft[: len(run.ttft) // 2])


@pytest.mark.parametrize("limits", [Limits(4, 512), Limits(256, 2048)])
def test_all_requests_end_whatever_the_limits(limits):
    run = simulate_fleet(flood(200, 2.0, output=60), replace(GATEWAY, limits=limits), Fixed(2))
    assert not np.isnan(run.ttft).any()


def test_slots_of_a_replica_are_kept_busy_while_the_gateway_holds_requests():
    requests = flood(200, 1.0, prompt=20, output=200)
    limits = Limits(8, 2048)
    ends = []
    for routing in ("round-robin", "gateway"):
        config = replace(GATEWAY, routing=routing, limits=limits, replica=ReplicaModel(noise=0.0))
        run = simulate_fleet(requests, config, Fixed(1))
        ends.append(np.max(run.arrival_s + run.ttft + run.tpot * (requests.output_tokens - 1)))
    assert ends[1] == pytest.approx(ends[0], rel=0.05)


def test_the_same_seed_gives_equal_results():
    requests = conversations(20, 3, every=0.1)
    first, again = (simulate_fleet(requests, GATEWAY, Fixed(3)) for _ in range(2))
    np.testing.assert_array_equal(first.ttft, again.ttft)


def test_pods_come_and_go_behind_the_gateway():
    class Wave:
        interval_s = 1.0

        def update(self, fleet, now):
            fleet.order(1 + int(now) % 3, now)

    run = run_fleet(flood(300, 20.0), replace(GATEWAY, start_up=undivided(0.5)), [Wave()])
    assert not np.isnan(run.ttft).any()


def test_mooncakes_format_brings_hash_ids_in_order_of_arrival(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 9, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}\n'
        '{"timestamp": 5, "input_length": 100, "output_length": 3, "hash_ids": [7]}\n'
    )
    requests = read_requests(path)
    assert requests.hash_ids == ((7,), (1, 2))
    assert len(doubled(requests, 0).hash_ids) == 4


def test_the_command_says_what_share_of_prompts_was_cached(tmp_path, capsys):
    path = tmp_path / "trace.jsonl"
    row = '{{"timestamp": {}, "input_length": 1024, "output_length": 3, "hash_ids": [1, 2]}}\n'
    path.write_text("".join(row.format(1000 * number) for number in range(4)))
    assert main(["fleet", str(path), "--scaler", "fixed:2", "--routing", "gateway"]) == 0
    assert "prefix cache hits       73.8% of prompt tokens" in capsys.readouterr().out

import json

import numpy as np
import pytest

from inflight_cost.capacity import Replica, Targets, Workload, largest_rate, steady
from inflight_cost.limits import best_limits
from inflight_settings.limits import Limits, LimitsBounds
from inflight_simulator.cli import main
from inflight_simulator.fleet.commands.plan import KV_CACHE, SLOTS, TPOT, TTFT, breaking_points, first_to_break
from inflight_simulator.fleet.commands.replica_file import read_replica
from inflight_simulator.fleet.commands.traffic import busiest, describe, doubled, workload_of
from inflight_simulator.fleet.config import REFERENCE_COST
from inflight_simulator.fleet.requests import Requests
from tests.simulator.fleet.test_example_replicas import FOLDER

REPLICA = Replica(REFERENCE_COST, 400_000)
WORKLOAD = Workload(1000, 1000, 2e6, 200, 6e4)
TARGETS, LIMITS = Targets(0.5, 0.05), Limits(256, 2048)


def test_what_breaks_first_breaks_where_the_capacity_model_ends():
    rate = largest_rate(REPLICA, WORKLOAD, TARGETS, LIMITS)
    points = breaking_points(REPLICA, WORKLOAD, rate / 2, TARGETS, LIMITS)
    assert min(points.values()) == pytest.approx(2.0, rel=1e-3)
    assert list(points.values()) == sorted(points.values())


@pytest.mark.parametrize(
    ("replica", "workload", "limits", "first"),
    [
        (REPLICA, Workload(4000, 4000, 2e7, 20, 600), LIMITS, TTFT),
        (REPLICA, WORKLOAD, Limits(8, 2048), SLOTS),
        (Replica(REFERENCE_COST, 20_000), WORKLOAD, LIMITS, KV_CACHE),
        (Replica(REFERENCE_COST, 1e9), Workload(10, 10, 200, 1000, 2e6), Limits(60_000, 65_000), TPOT),
    ],
)
def test_each_resource_can_be_the_first(replica, workload, limits, first):
    assert first_to_break(breaking_points(replica, workload, 1.0, TARGETS, limits)) == first


def test_targets_that_are_not_there_do_not_break():
    points = breaking_points(REPLICA, WORKLOAD, 1.0, Targets(None, None), LIMITS)
    assert points.keys() == {KV_CACHE, SLOTS}
    found = steady(REPLICA, WORKLOAD, points[SLOTS], LIMITS)
    assert found.running == pytest.approx(256, rel=1e-3)


def requests(times, prompt=1000, output=100):
    return Requests(np.array(times), np.full(len(times), prompt), np.full(len(times), output))


def test_the_busiest_minute_is_where_most_tokens_come():
    found = busiest(requests([*np.arange(0, 300, 2.0), *np.arange(300, 360, 0.5), *np.arange(360, 600, 2.0)]))
    assert found.stop - found.start == pytest.approx(120, abs=5)
    traffic = describe(requests(np.arange(0, 600, 0.5).tolist()))
    assert traffic.peak_requests_per_second == pytest.approx(2.0)
    assert traffic.requests_per_second == pytest.approx(2.0, rel=0.01)


def test_traffic_of_less_than_a_minute_is_a_minute():
    traffic = describe(requests([1.0, 2.0]))
    assert traffic.requests_per_second == traffic.peak_requests_per_second == pytest.approx(2 / 60)


def test_twice_the_load_is_each_request_twice():
    once = requests([0.0, 10.0, 20.0])
    twice = doubled(once, seed=1)
    assert len(twice) == 6
    assert np.diff(twice.arrival_s).min() >= 0
    assert (np.abs(twice.arrival_s.reshape(3, 2) - once.arrival_s[:, None]) <= 1).all()


@pytest.fixture
def arrivals(tmp_path):
    path = tmp_path / "arrivals.csv"
    rows = [f"{at / 16:.3f},1500,40" for at in range(16 * 20)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    return str(path)


def test_a_plan_is_checked_by_simulation(arrivals, capsys):
    files = ["--replica", str(FOLDER / "llama-3-8b-a100.json"), "--replica", str(FOLDER / "llama-3-8b-l40s.json")]
    assert main(["plan", arrivals, *files, "--price", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["traffic"]["requests"] == 320
    for each in found["replicas"]:
        checked, cost = each["checked"], each["cost"]
        assert checked["attainment"] >= 0.99
        assert checked["one_less"] is None or checked["one_less"] < 0.99
        assert cost["per_hour"] == 2 * checked["replicas"]
        assert cost["per_million_tokens"] < cost["per_million_output_tokens"]
        assert each["twice_replicas"] >= each["peak_replicas"] >= each["mean_replicas"]
        assert checked["twice_attainment"] <= checked["attainment"]


def test_a_plan_says_in_words_what_to_buy(arrivals, capsys):
    a100, l40s = FOLDER / "llama-3-8b-a100.json", FOLDER / "llama-3-8b-l40s.json"
    assert main(["plan", arrivals, "--replica", str(a100), "--replica", str(l40s), "--price", "2"]) == 0
    text = capsys.readouterr().out
    for words in (
        "Targets: first token within 500 ms (1 s for prompts over 4,000 tokens), 50 ms per output token.",
        "99% of the requests must keep both.",
        "max_num_batched_tokens",
        "per million output tokens",
        "breaks first",
        "at twice the load",
        "Cheapest: llama-3-8b-a100 at ",
    ):
        assert words in text


def test_a_target_that_no_request_keeps_is_said_at_once(arrivals, capsys):
    assert main(["plan", arrivals, "--tpot", "1ms"]) == 1
    assert "no number is enough: one request alone misses the targets" in capsys.readouterr().out


def test_two_files_of_one_name_are_refused(arrivals, tmp_path, capsys):
    copy = tmp_path / "llama-3-8b-a100.json"
    copy.write_bytes((FOLDER / copy.name).read_bytes())
    assert main(["plan", arrivals, "--replica", str(copy), "--replica", str(FOLDER / copy.name)]) == 2
    assert "the same name" in capsys.readouterr().err


def test_long_prompts_on_a_slow_replica_get_a_larger_budget_than_overload_would_allow(tmp_path, capsys):
    """Each step costs 19 ms: cut into many, 4,000 tokens take longer than the target even on an idle replica."""
    prompts = np.array([4000 if at % 4 else 500 for at in range(20)])
    path = tmp_path / "long.csv"
    rows = [f"{at},{prompt},20" for at, prompt in enumerate(prompts)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    l40s = FOLDER / "llama-3-8b-l40s.json"
    assert main(["plan", str(path), "--replica", str(l40s), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["replicas"]
    replica = read_replica(l40s)
    plain = best_limits(
        Replica(replica.cost, replica.kv_tokens * 0.99),
        workload_of(prompts, np.full(20, 20)),
        Targets(0.5, 0.05),
        LimitsBounds(Limits(1, 64), replica.capacity),
    )
    assert found["limits"][1] > plain.max_num_batched_tokens
    assert found["checked"]["attainment"] >= 0.99

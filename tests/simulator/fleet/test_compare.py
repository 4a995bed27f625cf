import json

import matplotlib.image
import numpy as np
import pytest

from inflight_simulator.cli import main
from inflight_simulator.fleet.commands.compare_command import comparison_table, followed, ranked
from inflight_simulator.fleet.commands.plot import plot_comparison, without_first_token
from inflight_simulator.fleet.commands.summary import FleetSummary
from inflight_simulator.fleet.outcome import FleetRun, ReplicaCount
from inflight_simulator.summary import Distribution


def summary(name, attainment, hours):
    none = Distribution(None, None, None, None)
    return FleetSummary(name, 100, 0, attainment, hours, 3, 20.0, none, none, 0, None, None, (), ())


FOUND = {
    name: summary(name, attainment, hours)
    for name, attainment, hours in [
        ("poor", 0.5, 1.0),
        ("dear", 0.999, 9.0),
        ("near", 0.985, 2.0),
        ("cheap", 0.99, 4.0),
        ("oracle", 0.99, 3.0),
    ]
}


def test_those_that_keep_the_targets_come_first_by_cost_and_the_others_by_attainment():
    assert ranked(FOUND) == ["oracle", "cheap", "dear", "near", "poor"]
    lines = comparison_table(FOUND).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ranked(FOUND)


def test_the_picture_follows_what_is_no_public_scaler_and_the_best_three():
    assert followed(FOUND) == ["oracle", "cheap", "dear", "near"]


@pytest.fixture
def arrivals(tmp_path):
    path = tmp_path / "arrivals.csv"
    rows = [f"{at / 12:.3f},1500,60" for at in range(12 * 20)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    return str(path)


NAMES = "fixed:2,hpa-queue:5,oracle"


def test_the_comparison_has_a_row_for_each_scaler_and_says_how_far_it_is(arrivals, capsys, tmp_path):
    picture = tmp_path / "compare.png"
    flags = ["--scalers", NAMES, "--start-up", "5", "--max-replicas", "4", "--plot", str(picture)]
    assert main(["fleet-compare", arrivals, *flags]) == 0
    out, err = capsys.readouterr()
    assert {line.split()[0] for line in out.splitlines()} == {"scaler", *NAMES.split(",")}
    assert [line.split(": ")[0] for line in err.splitlines()] == ["1 of 3", "2 of 3", "3 of 3"]
    assert matplotlib.image.imread(picture).std() > 0


def test_processes_find_what_one_finds(arrivals, capsys):
    found = []
    for processes in ("1", "2"):
        flags = ["--scalers", "hpa-queue:5,wva", "--start-up", "5", "--processes", processes, "--json", "-"]
        assert main(["fleet-compare", arrivals, *flags]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert {each["scaler"] for each in found[0]} == {"hpa-queue:5", "wva"}


def test_a_wrong_name_is_found_before_anything_is_simulated(arrivals, capsys):
    assert main(["fleet-compare", arrivals, "--scalers", "hpa-queue:5,hpa"]) == 2
    assert "there is no scaler 'hpa'" in capsys.readouterr().err


def test_one_run_is_drawn(arrivals, tmp_path, capsys):
    picture = tmp_path / "fleet.png"
    assert main(["fleet", arrivals, "--scaler", "knative", "--start-up", "5", "--plot", str(picture)]) == 0
    assert matplotlib.image.imread(picture).std() > 0


def run_of(times, ttft):
    times, ttft = np.array(times), np.array(ttft)
    ones = np.ones(len(times))
    counts = (ReplicaCount(0.0, 1, 1, 1),)
    return FleetRun(times, ttft, 0.01 * ones, 0.5 * ones, 0.05 * ones, counts, 1.0)


def test_requests_without_a_first_token_are_counted_each_second():
    seconds, waiting = without_first_token(run_of([0.0, 0.5, 3.0], [2.5, 0.1, np.nan]))
    assert seconds.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert waiting.tolist() == [1.0, 1.0, 1.0, 0.0]


def test_runs_with_the_same_result_are_drawn(tmp_path):
    plot_comparison(tmp_path / "same.png", dict.fromkeys("abc", run_of([0.0, 30.0], [0.1, 0.1])), ["a"])
    assert matplotlib.image.imread(tmp_path / "same.png").std() > 0

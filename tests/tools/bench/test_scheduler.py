import json
import sys

import pytest

from tools.bench import scheduler


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["scheduler", *arguments])
    scheduler.main()
    return capsys.readouterr().out


def test_every_size_is_measured_with_its_growth_and_its_changes(monkeypatch, capsys):
    report = json.loads(
        run(monkeypatch, capsys, "--sizes", "16", "48", "--steps", "112", "--samples", "5", "--json"),
    )
    assert [size["num_running"] for size in report["sizes"]] == [16, 48]
    # A block of 16 tokens is full in every 16th step of a request.
    assert [size["grown_tables"] for size in report["sizes"]] == [1.0, 3.0]
    for size in report["sizes"]:
        parts = size["schedule"]["median"] + size["update"]["median"] + size["metrics"]["median"]
        assert size["step"]["median"] == pytest.approx(parts, rel=0.5)
        assert min(size["arrival"], size["finish"], size["preemption"]) > size["step"]["median"]
        assert size["blocked"]["median"] > 0
        assert size["meets_goal"] == (size["step"]["median"] <= size["goal_us"])


def test_a_finish_ends_one_request_and_its_arrival_fills_the_place():
    load = scheduler.loaded(16, scheduler.blocks_for(16, 100), 64, 0, warm=True)
    plan, _ = load.step(stopping=3)
    assert load.scheduler.num_running == 15
    plan, _ = load.step()
    assert plan.releases == (3,)
    load.add(64)
    plan, _ = load.step()
    assert [start.slot for start in plan.starts] == [3]
    assert plan.starts[0].num_computed_tokens == 0


def test_steps_beside_a_request_that_does_not_fit_start_none_of_those_that_wait():
    load = scheduler.blocked(16, scheduler.blocks_for(16, 100), 64, 0)
    giant, *behind = load.scheduler.admission.blocked
    assert giant.scheduling.tenant == "giant"
    assert len(behind) > 0
    assert load.scheduler.num_running == 20
    plans, _ = load.steps(100)
    assert not any(plan.starts for plan in plans)
    assert load.scheduler.admission.blocked == [giant, *behind]


@pytest.mark.parametrize("arguments", [["--sizes", "3"], ["--steps", "many"], ["--samples", "0"]])
def test_numbers_out_of_range_are_refused_by_name(monkeypatch, capsys, arguments):
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys, *arguments)
    error = capsys.readouterr().err
    assert f"argument {arguments[0]}: must be between" in error or "'many' is not an integer" in error

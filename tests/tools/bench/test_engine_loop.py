import json
import sys

import pytest

from tools.bench import engine_loop


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["engine_loop", *arguments])
    engine_loop.main()
    return capsys.readouterr().out


def test_every_part_of_the_loop_is_measured_between_two_forward_passes(monkeypatch, capsys):
    report = json.loads(run(monkeypatch, capsys, "--sizes", "3", "--steps", "40", "--threads", "1", "--json"))
    (size,) = report["sizes"]
    # A token of each request is sampled by its prefill, and the steps to warm up are left out.
    assert (size["num_running"], size["num_steps"]) == (3, 39)
    assert list(size["parts"]) == list(engine_loop.PARTS)
    assert all(part["median"] > 0 for part in size["parts"].values())
    assert size["gap"]["median"] == pytest.approx(sum(part["median"] for part in size["parts"].values()), rel=0.5)
    assert size["meets_goal"] == (size["gap"]["median"] <= report["goal_us"])


def test_marks_of_a_step_that_did_something_else_are_left_out():
    marks = engine_loop.Marks(4)
    for num_tokens, decodes in ((4, True), (4, False), (5, True), (4, True)):
        marks.forward_ended()
        for _ in engine_loop.PARTS[1:]:
            marks.mark()
        marks.forward_begins(num_tokens, decodes=decodes)
    assert marks.times().shape == (2, len(engine_loop.PARTS))


def test_numbers_out_of_range_are_refused_by_name(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys, "--steps", "3")
    assert "argument --steps: must be between" in capsys.readouterr().err

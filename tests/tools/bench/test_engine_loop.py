import sys

import pytest

from tools.bench import engine_loop


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["engine_loop", *arguments])
    engine_loop.main()
    return capsys.readouterr().out


def test_every_part_of_the_loop_is_measured_between_two_forward_passes(monkeypatch, capsys):
    *_, cells = (
        line
        for line in run(monkeypatch, capsys, "--sizes", "3", "--steps", "40", "--threads", "1").split("\n")
        if "|" in line
    )
    size, *spreads, goal = cells.split("|")
    medians = [float(spread.split()[0]) for spread in spreads]
    assert (size.strip(), len(medians)) == ("3", 1 + len(engine_loop.PARTS))
    assert min(medians) > 0
    assert medians[0] == pytest.approx(sum(medians[1:]), rel=0.5)
    assert goal.strip() == ("yes" if medians[0] <= engine_loop.GOAL_MICROSECONDS else "no")


def test_the_steps_to_warm_up_are_left_out(tmp_path):
    engine_loop.write_model(tmp_path)
    # A token of each request is sampled by its prefill.
    assert len(engine_loop.measure(tmp_path, 3, 40, 1)) == 39


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

"""The start-up measurement: medians, what is printed, and that its two programs run against the code as it is."""

import json

import pytest

from tools.bench import startup
from tools.bench.startup import Seconds


@pytest.fixture
def measured(monkeypatch):
    starts = iter([9.0, 3.0, 8.0, 4.0])  # the first is the warm-up
    given = []

    def measure_start(flags):
        given.append(list(flags))
        wall = next(starts)
        return {"ready": Seconds(wall, wall + 2), "first answer": Seconds(0.1, 0.0)}

    monkeypatch.setattr(startup, "measure_start", measure_start)
    monkeypatch.setattr(startup, "measure_parts", lambda: {"imports": Seconds(2.0, 1.5)})
    return given


def test_the_median_of_the_runs_after_the_first_is_given(measured, capsys):
    assert startup.main(["--runs", "3", "--json", "--dtype", "float32"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"] == 3
    assert printed["seconds"] == {
        "ready": {"wall": 4.0, "cpu": 6.0},
        "first answer": {"wall": 0.1, "cpu": 0.0},
        "imports": {"wall": 2.0, "cpu": 1.5},
    }
    assert measured == [["--dtype", "float32"]] * 4


def test_a_table_has_a_line_for_each_part(measured, capsys):
    startup.main(["--runs", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == ["ready", "first answer", "imports"]


def test_no_runs_are_wrong_usage(measured):
    with pytest.raises(SystemExit):
        startup.main(["--runs", "0"])


@pytest.mark.slow
def test_the_parts_are_measured():
    parts = startup.measure_parts()
    assert set(parts) == {
        "engine process: torch",
        "engine process: other imports",
        "engine process: weights",
        "engine process: configuration, KV cache",
        "API process: imports",
        "API process: tokenizer",
    }
    assert all(part.wall > 0 for part in parts.values())

"""The start-up measurement: medians, what is printed, and that its two programs run against the code as it is."""

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
    monkeypatch.setattr(startup, "measure_sleep", lambda flags: startup.Sleep(0.04, 0.06, 500 << 20, 300 << 20))
    monkeypatch.setattr(startup, "measure_restart", lambda flags: Seconds(float(len(flags)), 0.0))
    return given


def test_a_line_for_each_part_has_the_median_of_the_runs_after_the_first(measured, capsys):
    assert startup.main(["--runs", "3", "--dtype", "float32"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [
        ["ready", "4.00", "s", "6.00", "s", "of", "CPU"],
        ["first", "answer", "0.10", "s"],
        ["imports", "2.00", "s", "1.50", "s", "of", "CPU"],
        ["killed", "engine", "to", "next", "token", "4.00", "s"],
        ["killed", "engine", "to", "next", "token,", "spare", "4.00", "s"],
        ["killed", "engine", "to", "next", "token,", "spare,", "kept", "weights", "6.00", "s"],
        ["one", "token,", "awake", "0.040", "s"],
        ["wake", "from", "sleep", "to", "one", "token", "0.060", "s"],
        ["engine", "process,", "cache", "filled", "500", "MiB"],
        ["engine", "process,", "asleep", "300", "MiB"],
    ]
    assert measured == [["--dtype", "float32"]] * 4


def test_no_runs_are_wrong_usage(measured):
    with pytest.raises(SystemExit):
        startup.main(["--runs", "0"])


@pytest.mark.slow
def test_sleep_is_measured():
    sleep = startup.measure_sleep([], tries=1)
    assert min(sleep.awake, sleep.asleep) > 0
    assert sleep.bytes_asleep < sleep.bytes_awake


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

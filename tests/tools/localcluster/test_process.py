"""Started programs are known again, and never mistaken for another process."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time

import pytest

from tools.localcluster import process
from tools.localcluster.errors import ClusterError
from tools.localcluster.layout import Layout
from tools.localcluster.process import Processes, Program


@pytest.fixture
def processes(tmp_path):
    started = Processes(Layout(tmp_path))
    yield started
    for path in started.folder.glob("*.json"):
        started.stop(path.stem, grace_seconds=1)


def python(code, name="sleeper", **environment):
    return Program(name, (sys.executable, "-c", code), environment)


SLEEP = "import time; time.sleep(60)"


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_started_program_runs_and_is_not_started_twice(processes):
    assert processes.ensure(python(SLEEP))
    first = processes.running("sleeper")
    assert first
    assert not processes.ensure(python(SLEEP))
    assert processes.running("sleeper") == first


def test_a_changed_command_line_replaces_the_process(processes):
    processes.ensure(python(SLEEP))
    first = processes.running("sleeper")
    assert processes.ensure(python(SLEEP + " # changed"))
    second = processes.running("sleeper")
    assert second
    assert second.pid != first.pid
    assert process.observe(first.pid) is None


def test_a_changed_configuration_replaces_the_process(processes):
    processes.ensure(python(SLEEP), "colour = 1")
    first = processes.running("sleeper")
    assert not processes.ensure(python(SLEEP), "colour = 1")
    assert processes.ensure(python(SLEEP), "colour = 2")
    assert processes.running("sleeper").pid != first.pid


def test_a_killed_process_is_seen_and_started_again(processes):
    processes.ensure(python(SLEEP))
    os.kill(processes.running("sleeper").pid, signal.SIGKILL)
    wait_until(lambda: processes.running("sleeper") is None)
    assert processes.ensure(python(SLEEP))
    assert processes.running("sleeper")


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"argv": ["another", "program"]}])
def test_a_pid_that_another_process_has_now_is_neither_running_nor_killed(processes, change):
    processes.ensure(python(SLEEP))
    record = processes.running("sleeper")
    path = processes.folder / "sleeper.json"
    saved = path.read_text()
    path.write_text(json.dumps({**dataclasses.asdict(record), **change}))
    assert processes.running("sleeper") is None
    processes.stop("sleeper")
    assert process.observe(record.pid) is not None
    path.write_text(saved)


def test_a_process_that_ignores_sigterm_is_killed(processes):
    program = python("import signal, time; signal.signal(15, signal.SIG_IGN); print('set', flush=True); time.sleep(60)")
    processes.ensure(program)
    wait_until(lambda: "set" in processes.log("sleeper").read_text())
    record = processes.running("sleeper")
    processes.stop("sleeper", grace_seconds=0.2)
    assert process.observe(record.pid) is None
    assert not (processes.folder / "sleeper.json").exists()


def test_a_process_that_is_ending_still_counts_as_running(processes, monkeypatch):
    processes.ensure(python(SLEEP))
    record = processes.running("sleeper")
    with monkeypatch.context() as patch:
        # What /proc shows of a killed process whose memory is gone and whose files are not closed yet.
        patch.setattr(process, "observe", lambda pid: dataclasses.replace(record, argv=("",)))
        assert processes.running("sleeper") == record


def test_stopping_what_never_ran_is_no_error(processes):
    processes.stop("nothing")


def test_an_ended_program_is_reported_with_its_last_words(processes):
    processes.ensure(python("import sys; sys.exit('the port is in use')"))
    with pytest.raises(ClusterError, match=r"(?s)sleeper ended.*the port is in use"):
        processes.wait_ready("sleeper", lambda: False, 20)


def test_a_program_that_never_gets_ready_is_reported_in_time(processes):
    processes.ensure(python(SLEEP))
    with pytest.raises(ClusterError, match="sleeper was not ready after"):
        processes.wait_ready("sleeper", lambda: False, 0.2)


def test_output_and_added_environment_reach_the_log(processes):
    processes.ensure(python("import os; print('colour', os.environ['COLOUR'])", COLOUR="blue"))
    wait_until(lambda: "colour blue" in processes.log("sleeper").read_text())


def test_the_start_time_is_now_for_a_process_started_now(processes):
    processes.ensure(python(SLEEP))
    age = time.time() - processes.started_at("sleeper").timestamp()
    assert -1 <= age < 10


def test_state_and_start_time_are_read_past_a_name_with_brackets_and_spaces():
    fields = ["S", *map(str, range(1, 50))]
    assert process.parse_stat(f"12 (a) b) {' '.join(fields)}") == ("S", 19)


def test_an_exited_child_that_nobody_waited_for_counts_as_gone():
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
    try:
        wait_until(lambda: process.observe(pid) is None)
    finally:
        os.waitpid(pid, 0)


def test_tail_shows_the_last_lines_cut_to_width(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)) + "w" * 1000)
    shown = process.tail(log, lines=2).splitlines()
    assert shown[0].strip() == "line 99"
    assert len(shown[1].strip()) == 300
    assert "no log" in process.tail(tmp_path / "none")

"""Memory of this process and of those below it."""

import os
import subprocess
import sys

import pytest

from inflight_engine.server.telemetry.process_memory import resident_bytes

PAGE = os.sysconf("SC_PAGE_SIZE")


def process(proc, pid, pages, *threads):
    """`threads`: the children that each thread started."""
    for thread, children in enumerate(threads or ([],)):
        task = proc / str(pid) / "task" / str(pid + 1000 * thread)
        task.mkdir(parents=True)
        (task / "children").write_text("".join(f"{child} " for child in children))
    (proc / str(pid) / "statm").write_text(f"9999 {pages} 1 1 0 1 0\n")


def test_the_engine_is_all_that_this_process_and_its_children_started_in_any_thread(tmp_path):
    process(tmp_path, 1, 10, [], [20])
    process(tmp_path, 20, 200, [21, 22])
    process(tmp_path, 21, 30)
    process(tmp_path, 22, 40)
    process(tmp_path, 5, 7)
    assert dict(resident_bytes(1, None, tmp_path)) == {"api": 10 * PAGE, "engine": 270 * PAGE}


def test_the_spare_is_no_part_of_the_engine(tmp_path):
    process(tmp_path, 1, 10, [20], [30])
    process(tmp_path, 20, 200)
    process(tmp_path, 30, 50)
    assert dict(resident_bytes(1, 30, tmp_path)) == {"api": 10 * PAGE, "engine": 200 * PAGE, "spare": 50 * PAGE}


def test_processes_that_are_gone_count_nothing(tmp_path):
    process(tmp_path, 1, 10, [20])
    assert dict(resident_bytes(1, None, tmp_path)) == {"api": 10 * PAGE, "engine": 0}
    assert dict(resident_bytes(3, None, tmp_path)) == {"api": 0, "engine": 0}


def test_a_process_that_goes_while_its_threads_are_listed_counts_nothing(tmp_path, monkeypatch):
    def vanishing(self, pattern):
        yield self / "1" / "task" / "1" / "children"
        raise FileNotFoundError(pattern)

    process(tmp_path, 1, 10, [20])
    process(tmp_path, 20, 200)
    glob = type(tmp_path).glob
    monkeypatch.setattr(
        type(tmp_path), "glob", lambda self, pattern: (vanishing if pattern.startswith("1/") else glob)(self, pattern)
    )
    assert dict(resident_bytes(1, None, tmp_path)) == {"api": 10 * PAGE, "engine": 200 * PAGE}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_real_child_is_found():
    command = [sys.executable, "-c", "input(0)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.read(1)  # it runs
        own = dict(resident_bytes(os.getpid()))
        child.communicate(b"\n")
    assert own["api"] > 1 << 20
    assert own["engine"] > 1 << 20

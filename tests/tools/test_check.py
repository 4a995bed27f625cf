"""`make test` fails when anything fails, and leaves nothing running that it started."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pytest

from tools import check
from tools.check import Check
from tools.localcluster.errors import ClusterError
from tools.localcluster.layout import REPOSITORY
from tools.localcluster.process import observe


def python(code):
    return (sys.executable, "-c", code)


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """Run `main` with these checks, in front, at last, and in the background with this code; the exit code."""

    def run(in_front=(), at_last=(), background="print('the cluster is up')"):
        monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path))
        monkeypatch.setattr(sys, "argv", ["check"])
        monkeypatch.setattr(check, "require_machine", lambda: None)
        monkeypatch.setattr(check, "IN_FRONT", in_front)
        monkeypatch.setattr(check, "AT_LAST", at_last)
        monkeypatch.setattr(check, "IN_BACKGROUND", (Check("beside", python(background)),))
        try:
            return check.main()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)

    return run


def test_contract_tests_are_run_from_every_folder_that_has_some():
    found = {
        path for path in (REPOSITORY / "tests").rglob("test_*.py") if "pytest.mark." + "contract" in path.read_text()
    }
    run = [path for folder in check.CONTRACT[2:] for path in (REPOSITORY / folder).rglob("*.py")]
    assert len(found) > 10
    assert found <= set(run)


def test_all_checks_pass_and_the_outputs_are_shown_in_order(prepared, capfd):
    assert prepared([Check("one", python("print('3 passed')"))], [Check("two", python(""))]) == 0
    shown = capfd.readouterr().out
    assert shown.index("== one") < shown.index("3 passed") < shown.index("the cluster is up") < shown.index("== two")
    assert re.search(r"^one \d+ s, two \d+ s$", shown, re.MULTILINE)
    assert "beside them: beside " in shown


def test_the_first_check_that_fails_is_the_last(prepared, capfd):
    checks = [Check("one", python("import sys; sys.exit(5)")), Check("two", python(""))]
    assert prepared(checks, [Check("three", python(""))]) == 1
    shown = capfd.readouterr().out
    assert "error: one failed (exit code 5)" in shown
    assert "== two" not in shown
    assert "== three" not in shown


def test_without_a_cluster_the_checks_that_need_one_fail(prepared, capfd):
    at_last = [Check("two", python("print('was run')"))]
    assert prepared([], at_last, "import sys; sys.exit('error: no disk')") == 1
    shown = capfd.readouterr().out
    assert "error: no disk" in shown
    assert "error: beside failed" in shown
    assert "was run" not in shown


@pytest.mark.parametrize("inherited", [signal.default_int_handler, signal.SIG_IGN])
def test_a_failure_in_the_background_ends_what_runs_in_front(prepared, capfd, inherited):
    signal.signal(signal.SIGINT, inherited)
    slow = Check("slow", python("import time; time.sleep(60)"))
    started = time.monotonic()
    assert prepared([slow, Check("next", python(""))], [], "import sys; sys.exit('error: no disk')") == 1
    assert time.monotonic() - started < 30
    shown = capfd.readouterr().out
    assert "error: beside failed" in shown
    assert "slow failed" not in shown
    assert "== next" not in shown


def test_a_machine_that_cannot_do_it_is_told_first(prepared, monkeypatch, capfd):
    def refuse():
        raise ClusterError("the local node needs root: run this with sudo")

    monkeypatch.setattr(check, "IN_FRONT", (Check("one", python("print('was run')")),))
    monkeypatch.setattr(check, "require_machine", refuse)
    monkeypatch.setattr(sys, "argv", ["check"])
    assert check.main() == 1
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    shown = capfd.readouterr()
    assert "error: the local node needs root: run this with sudo" in shown.err
    assert "was run" not in shown.out


def test_a_failure_ends_the_preparation_and_what_it_started(prepared, tmp_path):
    pids = tmp_path / "pids"
    preparation = (
        "import os, pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"partial = pathlib.Path({str(pids)!r} + '.partial')\n"
        "partial.write_text(f'{os.getpid()} {child.pid}')\n"
        f"partial.rename({str(pids)!r})\n"
        "time.sleep(60)"
    )
    waits = f"import pathlib, sys, time\nwhile not pathlib.Path({str(pids)!r}).exists(): time.sleep(0.01)\nsys.exit(1)"
    assert prepared([Check("one", python(waits))], background=preparation) == 1
    wait_until(lambda: not any(observe(int(pid)) for pid in pids.read_text().split()))


def test_what_runs_in_the_background_may_end_in_order_after_a_failure(prepared, tmp_path):
    running, ended = tmp_path / "running", tmp_path / "ended"
    careful = (
        "import pathlib, time\n"
        f"try:\n    pathlib.Path({str(running)!r}).touch(); time.sleep(60)\n"
        f"except KeyboardInterrupt:\n    pathlib.Path({str(ended)!r}).touch()"
    )
    waits = (
        f"import pathlib, sys, time\nwhile not pathlib.Path({str(running)!r}).exists(): time.sleep(0.01)\nsys.exit(1)"
    )
    assert prepared([Check("one", python(waits))], background=careful) == 1
    assert ended.exists()


@pytest.mark.parametrize("inherited", [signal.SIG_DFL, signal.SIG_IGN])
def test_sigterm_lets_the_running_check_end_in_order(tmp_path, inherited):
    """This holds also in the background job of a script, which a shell starts with SIGINT ignored."""
    careful = (
        "import time\n"
        "try:\n    print('running', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt:\n    time.sleep(0.5); print('ended in order', flush=True)"
    )
    code = (
        "import sys; from tools import check\n"
        "check.require_machine = lambda: None\n"
        "check.IN_BACKGROUND = ()\n"
        f"check.IN_FRONT = (check.Check('one', (sys.executable, '-c', {careful!r})),)\n"
        "sys.argv = ['check']; sys.exit(check.main())"
    )
    with subprocess.Popen(
        python(code),
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={"INFLIGHT_CACHE": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, inherited),
    ) as process:
        while process.stdout.readline() != "running\n":
            assert process.poll() is None
        process.terminate()
        assert "ended in order" in process.stdout.read()
        assert process.wait() == 128 + signal.SIGTERM

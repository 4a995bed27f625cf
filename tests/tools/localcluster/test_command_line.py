"""The command line, the locks and the progress lines."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tools import localcluster
from tools.localcluster import __main__ as command_line
from tools.localcluster import files, locking, progress
from tools.localcluster.errors import ClusterError
from tools.localcluster.layout import REPOSITORY

COMMANDS = ("up", "down", "status", "build", "build-all", "kubectl", "kubeconfig", "promtool-path", "preflight")


def test_help_names_every_command_and_an_example(capsys):
    with pytest.raises(SystemExit) as ended:
        command_line.main(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(f"  {command} " in shown or f"  {command}\n" in shown for command in COMMANDS)
    assert "example:" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command, capsys):
    with pytest.raises(SystemExit) as ended:
        command_line.main([command, "--help"])
    assert ended.value.code == 0
    assert "example: python -m tools.localcluster" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["build"], ["build", "gateway"], ["preflight", "--disk", "x"]])
def test_wrong_usage_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        command_line.main(arguments)
    assert ended.value.code == 2
    capsys.readouterr()


def test_a_failure_is_one_sentence_and_ends_with_1(monkeypatch, capsys):
    def fail(progress, image_names=()):
        raise ClusterError("there is no disk: buy one")

    monkeypatch.setattr(localcluster, "ensure_up", fail)
    assert command_line.main(["up"]) == 1
    assert capsys.readouterr().err == "error: there is no disk: buy one\n"


def test_the_kubeconfig_of_a_named_cluster_is_printed(monkeypatch, capsys):
    monkeypatch.setenv("INFLIGHT_KUBECONFIG", "/some/config")
    assert command_line.main(["kubeconfig"]) == 0
    assert capsys.readouterr().out == "/some/config\n"


def test_up_with_images_asks_for_all(monkeypatch):
    asked = []
    monkeypatch.setattr(localcluster, "ensure_up", lambda progress, names=(): asked.append(tuple(names)))
    assert command_line.main(["up"]) == 0
    assert command_line.main(["up", "--with-images"]) == 0
    assert asked == [(), ("engine", "operator", "envoy")]


def test_a_second_holder_of_a_lock_waits_and_says_for_whom(tmp_path):
    lock = tmp_path / "lock"
    hold = (
        "import sys, pathlib, time; from tools.localcluster import locking\n"
        "with locking.exclusive(pathlib.Path(sys.argv[1]), 'x', print):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert holder.stdout.readline() == "held\n"
    said, entered = [], threading.Event()

    def second():
        with locking.exclusive(lock, "bringing it up", said.append):
            entered.set()

    waiting = threading.Thread(target=second)
    waiting.start()
    deadline = time.monotonic() + 10
    while not said:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert said == [f"bringing it up is already being done by process {holder.pid}; waiting for it"]
    assert not entered.is_set()
    holder.kill()  # a killed holder leaves no lock behind
    assert entered.wait(60)
    waiting.join()
    holder.communicate()


def test_a_free_lock_is_taken_without_a_word(tmp_path):
    said = []
    with locking.exclusive(tmp_path / "a" / "lock", "x", said.append):
        pass
    assert said == []


def test_a_step_tells_its_start_its_life_and_its_end(monkeypatch):
    monkeypatch.setattr(progress, "HEARTBEAT_SECONDS", 0.01)
    said = []
    with progress.step(said.append, "working", lambda: "3 of 5"):
        deadline = time.monotonic() + 10
        while len(said) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    assert said[0] == "working"
    assert said[1].startswith("working: 0 s so far, 3 of 5")
    assert said[-1].startswith("working: done in")


def test_a_failed_step_does_not_say_done():
    said = []
    with pytest.raises(ClusterError), progress.step(said.append, "working"):
        raise ClusterError("no")
    assert said == ["working"]


def test_a_file_is_written_whole_and_nothing_beside_it_stays(tmp_path):
    path = tmp_path / "a" / "x.json"
    files.write_json(path, {"a": 1})
    assert files.write_json(path, {"a": 2}) == path.read_text() == '{\n  "a": 2\n}\n'
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]


def test_a_write_that_is_cut_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    files.write_whole(path, "before", mode=0o600)
    monkeypatch.setattr(Path, "rename", lambda *_: sys.exit("killed"))
    with pytest.raises(SystemExit):
        files.write_whole(path, "after", mode=0o600)
    assert path.read_text() == "before"
    assert {entry.stat().st_mode & 0o777 for entry in tmp_path.iterdir()} == {0o600}


def test_a_read_only_tree_is_removed(tmp_path):
    (tmp_path / "mod" / "x").mkdir(parents=True)
    (tmp_path / "mod" / "x" / "file").touch()
    (tmp_path / "mod" / "x").chmod(0o555)
    files.remove_tree(tmp_path / "mod")
    assert not (tmp_path / "mod").exists()

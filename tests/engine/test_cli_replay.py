"""`inflight-engine replay`: what it prints, and its exit status."""

import gzip
import json
import os
import pty
import select
import subprocess
import sys
from itertools import count
from types import SimpleNamespace

import pytest

from inflight_engine.cli import main
from inflight_engine.recording.lines import FORMAT_VERSION
from tests.engine.recording.workload import Workload

CLEARED = "\r\x1b[K"
"""The line of the progress is wiped."""


@pytest.fixture(scope="module")
def packed():
    return Workload(seed=4).run(800)


@pytest.fixture
def path(tmp_path, packed):
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(packed)
    return path


def alter(path):
    """Change the digest of a step; returns its number."""
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    line = next(line for line in lines[100:] if line[0] == "step")
    line[4] ^= 1
    path.write_bytes(gzip.compress(b"\n".join(json.dumps(line).encode() for line in lines) + b"\n"))
    return line[1]


def test_no_difference(path, capsys):
    assert main(["replay", str(path)]) == 0
    recorded, counted, result = capsys.readouterr().out.splitlines()
    assert recorded.startswith("recorded from 20")
    requests, steps = (int(word) for word in counted.split() if word.isdigit())
    assert requests > 20
    assert steps > 100
    assert result == "no difference"


def test_the_first_difference(path, capsys):
    step = alter(path)
    assert main(["replay", str(path)]) == 1
    _, _, head, recorded, replayed, *plan = capsys.readouterr().out.splitlines()
    assert head == f"step {step}: another plan"
    assert recorded.startswith("  recorded: ")
    assert replayed.removeprefix("  replayed: ") == recorded.removeprefix("  recorded: ").partition(";")[0]
    assert all(line.startswith("    ") and ": " in line for line in plan)
    assert plan


def test_json(path, capsys):
    assert main(["replay", str(path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["difference"], result["cut_short"]) == (None, False)
    assert result["steps"] > result["requests"] > 20
    step = alter(path)
    assert main(["replay", "--json", str(path)]) == 1
    difference = json.loads(capsys.readouterr().out)["difference"]
    assert (difference["step"], difference["request_id"], difference["what"]) == (step, None, "plan")


def test_a_file_cut_short_is_replayed_and_said_to_be(path, packed, capsys):
    path.write_bytes(packed[: len(packed) // 2])
    assert main(["replay", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("the file stops before its end")
    assert lines[-1] == "no difference"
    assert main(["replay", "--json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["cut_short"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["replay"], "the following arguments are required: FILE"),
        (["replay", "a", "b"], "unrecognized arguments: b"),
        (["replay", "--jso", "a"], "unrecognized arguments: --jso"),
    ],
)
def test_wrong_usage_is_2(arguments, sentence, capsys):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_2_with_a_sentence(tmp_path, capsys):
    for path, sentence in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        assert main(["replay", str(path)]) == 2
        assert capsys.readouterr().err == f"error: cannot read {path}: {sentence}\n"


def test_a_file_that_is_no_recording_is_2_with_a_sentence(tmp_path, capsys):
    path = tmp_path / "notes.txt"
    path.write_text("buy milk\n")
    assert main(["replay", str(path)]) == 2
    assert capsys.readouterr().err == f"error: {path} is no recording of inflight-engine: its first line is another\n"


def test_what_this_program_cannot_replay_is_2_with_a_sentence(path, capsys):
    header, *rest = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(header.replace(b'"policy":"fcfs"', b'"policy":"whim"') + b"".join(rest))
    assert main(["replay", str(path)]) == 2
    assert (
        f"{path} cannot be understood in line 1: Invalid enum value 'whim' - at `$.config.policy`"
        in capsys.readouterr().err
    )
    for version in (FORMAT_VERSION - 1, FORMAT_VERSION + 1):
        path.write_bytes(header.replace(b'"version":%d' % FORMAT_VERSION, b'"version":%d' % version) + b"".join(rest))
        assert main(["replay", str(path)]) == 2
        assert f"in format {version}, and this program reads format {FORMAT_VERSION}" in capsys.readouterr().err


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as left:
        main(["replay", "--help"])
    assert left.value.code == 0
    assert "inflight-engine replay run.jsonl.gz" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "replay a recording" in capsys.readouterr().out


def test_it_loads_no_torch(path):
    program = (
        "import sys\n"
        "from inflight_engine.cli import main\n"
        f"assert main(['replay', {str(path)!r}]) == 0\n"
        "assert not {'torch', 'fastapi'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_progress_is_for_terminals_only(path, monkeypatch):
    # A clock of its own, for a fast machine is done before anything is due: a second an event, and a word each hundred.
    monkeypatch.setattr("inflight_engine.recording.command._PROGRESS_SECONDS", 100)
    monkeypatch.setattr("inflight_engine.recording.command.time", SimpleNamespace(monotonic=count().__next__))
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert main(["replay", str(path)]) == 0
        # A terminal hands on what was written to it when it gets round to it, not all at once.
        shown = ""
        while not shown.endswith(CLEARED) and select.select([ours], [], [], 10)[0]:
            shown += os.read(ours, 65536).decode()
    os.close(ours)
    assert shown.count(" of ") > 1
    assert shown.endswith(CLEARED)


def test_without_a_terminal_there_is_no_progress(path, monkeypatch, capsys):
    monkeypatch.setattr("inflight_engine.recording.command._PROGRESS_SECONDS", 0.0)
    assert main(["replay", str(path)]) == 0
    assert capsys.readouterr().err == ""

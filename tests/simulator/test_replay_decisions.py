"""`inflight-simulate replay-decisions`: the operator's decisions, repeated."""

import re
from dataclasses import replace

import pytest
import zstandard

from inflight_base.recording import packed, parts_of
from inflight_operator.recording.codec import RoundCodec
from inflight_operator.recording.recorder import DecisionRecorder
from inflight_simulator import replay_decisions
from inflight_simulator.cli import main
from tests.operator.fakes import KEY
from tests.operator.reconcile.random_fleet import RandomFleet, Tick

SPEC = {"slo": {"ttftP95": "2s", "tpotP95": "50ms"}, "engine": {"maxNumSeqs": 64, "maxNumBatchedTokens": 2048}}


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """A burst, with decisions about replicas."""
    folder = tmp_path_factory.mktemp("recording")
    fleet = RandomFleet(SPEC)
    recorder = DecisionRecorder(folder)
    for number in range(60):
        fleet.tick(Tick(rate=60.0 if 5 < number < 30 else 1.0))
    for one in fleet.rounds:
        recorder.decided(KEY, one.snapshot, one.memory, one.plan)
    recorder.close()
    (file,) = folder.iterdir()
    return file


def changed(recording, tmp_path):
    """The recording, with another order in the first plan that has a decision."""
    (_, header), *rounds = parts_of([recording.read_bytes()])
    codec, done, content = RoundCodec(), False, header
    for service, message in rounds:
        snapshot, memory, plan = codec.decode(message)
        if plan.decisions and not done:
            plan, done = replace(plan, replicas=plan.replicas + 5), True
        content += packed(service, codec.encode((snapshot, memory, plan)))
    other = tmp_path / "changed"
    other.write_bytes(zstandard.compress(content))
    return other


def test_a_recording_is_repeated_without_a_difference(recording, capsys):
    assert main(["replay-decisions", str(recording)]) == 0
    first, *decisions, empty, last = capsys.readouterr().out.splitlines()
    assert re.match(r"team/chat: 61 rounds from 2026-11-20 10:00:00.* to .*; decisions: .*Scaling \d", first)
    assert any(re.match(r"  10:00:\d\d  replicas \d -> \d: ", line) for line in decisions)
    assert (empty, last) == ("", "61 rounds replayed: no difference")


def test_a_difference_is_shown_by_round_and_field(recording, tmp_path, capsys):
    assert main(["replay-decisions", str(changed(recording, tmp_path))]) == 1
    out = capsys.readouterr().out
    assert "1 with another plan than was recorded" in out
    assert re.search(r"changed, round \d+: team/chat at 2026-11-20 10:00:\d\d", out)
    assert re.search(r"^  replicas: recorded \d+, now \d+$", out, re.MULTILINE)


def test_a_decision_that_fails_now_is_a_difference(recording, capsys, monkeypatch):
    def fail(snapshot, memory):
        raise KeyError("gone")

    monkeypatch.setattr(replay_decisions, "decide", fail)
    assert main(["replay-decisions", str(recording)]) == 1
    out = capsys.readouterr().out
    assert "61 with another plan than was recorded" in out
    assert "the decision fails now: KeyError: 'gone'" in out
    assert "and 58 more rounds" in out


def test_all_decisions_are_listed_where_asked_for(recording, capsys, monkeypatch):
    monkeypatch.setattr(replay_decisions, "SHOWN_DECISIONS", 1)
    assert main(["replay-decisions", str(recording)]) == 0
    few = capsys.readouterr().out
    assert "earlier decision" in few
    assert main(["replay-decisions", str(recording), "--decisions"]) == 0
    every = capsys.readouterr().out
    assert "earlier decision" not in every
    assert len(every.splitlines()) > len(few.splitlines())


def test_several_files_are_replayed_together_and_one_service_alone(recording, capsys):
    assert main(["replay-decisions", str(recording), str(recording), "--service", "team/chat"]) == 0
    assert "122 rounds replayed" in capsys.readouterr().out
    assert main(["replay-decisions", str(recording), "--service", "team/other"]) == 2
    assert "no round of the service" in capsys.readouterr().err


def test_a_file_that_was_cut_short_is_replayed_as_far_as_it_goes(recording, tmp_path, capsys):
    file = tmp_path / "cut.zst"
    file.write_bytes(recording.read_bytes()[:-500])
    assert main(["replay-decisions", str(file)]) == 0
    said = capsys.readouterr()
    assert "stops before its end" in said.err
    assert "no difference" in said.out


def test_another_file_is_refused_with_a_sentence(tmp_path, capsys):
    file = tmp_path / "notes"
    file.write_text("hello\n")
    assert main(["replay-decisions", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"error: {file} is no recording of inflight-operator: its first line is another\n"
    )
    assert main(["replay-decisions", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_help_says_how_to_make_a_recording(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["replay-decisions", "--help"])
    assert ended.value.code == 0
    assert "--record-decisions FOLDER" in capsys.readouterr().out

"""Recordings: bounded, without tokens, harmless, and whole enough to be read from any file on."""

import base64
import gzip
import json
import logging
from dataclasses import replace

import pytest
import zstandard

from inflight_base.manifest.keys import ServiceKey
from inflight_operator.reconcile.decide import decide
from inflight_operator.recording import recorder as recorder_module
from inflight_operator.recording.reader import Recording, RecordingError, differences
from inflight_operator.recording.recorder import PLACEHOLDER, DecisionRecorder
from tests.operator.fakes import KEY, delete
from tests.operator.reconcile.random_fleet import TOKEN, RandomFleet, Tick
from tests.operator.reconcile.world import SMALL, World

SPEC = {**SMALL, "slo": {"ttftP95": "2s", "tpotP95": "50ms"}}


@pytest.fixture(scope="module")
def rounds():
    """Returns the rounds of one service, through a burst and after it."""
    fleet = RandomFleet(SPEC)
    for number in range(60):
        fleet.tick(Tick(rate=40.0 if 10 < number < 30 else 1.0))
    return fleet.rounds


def record(folder, rounds, key=KEY, **more):
    recorder = DecisionRecorder(folder, **more)
    for one in rounds:
        recorder.decided(key, one.snapshot, one.memory, one.plan)
    recorder.close()
    return sorted(folder.iterdir())


def content_of(path):
    return zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())


def rewritten(path, content):
    """A recording with this content."""
    path.write_bytes(zstandard.compress(content))
    return path


def assert_repeatable(recorded):
    for one in recorded:
        assert [str(each) for each in differences(one.plan, decide(one.snapshot, one.memory))] == []


def test_all_rounds_come_back_in_order(tmp_path, rounds):
    (file,) = record(tmp_path, rounds)
    recorded = list(Recording(file).rounds())
    assert [one.snapshot.at for one in recorded] == [one.snapshot.at for one in rounds]
    assert {one.service for one in recorded} == {"team/chat"}
    assert_repeatable(recorded)
    assert any(one.plan.decisions for one in recorded)


def test_no_token_is_written_in_any_form_also_in_the_round_in_which_it_changes(tmp_path, rounds):
    new = "AnotherTokenThatIsAsLongAsTokensAre01234567"
    last = rounds[-1]
    snapshot = replace(last.snapshot, admin_token=new)
    changed = replace(last, snapshot=snapshot, plan=decide(snapshot, last.memory))
    (file,) = record(tmp_path, [changed, *rounds])
    for token in (TOKEN, new):
        for form in (token.encode(), base64.b64encode(token.encode()), token.encode().hex().encode()):
            assert form not in content_of(file)
    assert PLACEHOLDER in content_of(file)
    assert_repeatable(Recording(file).rounds())


def test_a_round_costs_what_is_new_in_it(tmp_path, rounds):
    last = rounds[-1]
    later = [replace(last, snapshot=replace(last.snapshot, now=last.snapshot.now + second)) for second in range(9)]
    (one,) = record(tmp_path / "one", later[:1])
    (all_of_them,) = record(tmp_path / "all", later)
    assert len(content_of(one).partition(b"\n")[0]) < 11_000
    assert all_of_them.stat().st_size < 1.2 * one.stat().st_size


def test_files_are_rotated_within_the_size_and_each_can_be_read_alone(tmp_path, rounds, monkeypatch):
    monkeypatch.setattr(recorder_module, "FLUSH_BYTES", 1)
    most = 40_000
    written = record(tmp_path, rounds * 4, max_bytes=most)
    assert 1 < len(written) <= recorder_module.FILES + 1
    assert written[0].name > "decisions-000001"
    assert sum(file.stat().st_size for file in written) < most * 1.2
    for file in written:
        recorded = list(Recording(file).rounds())
        assert recorded
        assert_repeatable(recorded)


def test_numbers_of_files_go_on_after_a_restart(tmp_path, rounds):
    record(tmp_path, rounds[:2])
    assert [file.name for file in record(tmp_path, rounds[:2])] == [
        "decisions-000001.zst",
        "decisions-000002.zst",
    ]


def test_only_the_services_that_were_asked_for_are_recorded(tmp_path, rounds):
    other = ServiceKey("team", "other")
    assert record(tmp_path, rounds, other, services=["team/chat"]) == []
    (file,) = record(tmp_path, rounds, other, services=["team/other"])
    assert len(list(Recording(file).rounds(["team/other"]))) == len(rounds)
    assert list(Recording(file).rounds(["team/chat"])) == []


def test_services_in_one_file_do_not_disturb_each_other(tmp_path, rounds):
    recorder = DecisionRecorder(tmp_path)
    other = ServiceKey("team", "other")
    for one in rounds:
        recorder.decided(KEY, one.snapshot, one.memory, one.plan)
        recorder.decided(other, one.snapshot, one.memory, one.plan)
    recorder.close()
    (file,) = tmp_path.iterdir()
    assert_repeatable(Recording(file).rounds(["team/other"]))
    assert len(list(Recording(file).rounds())) == 2 * len(rounds)


def test_a_full_disk_ends_the_recording_with_one_line_and_no_round(tmp_path, rounds, monkeypatch, caplog):
    def full(self, data):
        raise OSError(28, "No space left on device")

    class Full:
        write = full

        def close(self):
            pass

    monkeypatch.setattr(recorder_module, "FLUSH_BYTES", 1)
    recorder = DecisionRecorder(tmp_path)
    for one in rounds[:5]:
        recorder.decided(KEY, one.snapshot, one.memory, one.plan)
    recorder._files._file = Full()
    with caplog.at_level(logging.WARNING):
        for one in rounds[5:]:
            recorder.decided(KEY, one.snapshot, one.memory, one.plan)
        recorder.close()
    assert [record.getMessage() for record in caplog.records] == [
        "decisions are no longer recorded: [Errno 28] No space left on device"
    ]
    (file,) = tmp_path.iterdir()
    recording = Recording(file)
    assert len(list(recording.rounds())) == 5
    assert recording.cut_short


def test_a_value_that_cannot_be_written_ends_the_recording_and_no_round(tmp_path, rounds, caplog):
    recorder = DecisionRecorder(tmp_path)
    odd = replace(rounds[0].snapshot, deployment={"kind": object()})
    recorder.decided(KEY, odd, rounds[0].memory, rounds[0].plan)
    recorder.decided(KEY, odd, rounds[0].memory, rounds[0].plan)
    assert len(caplog.records) == 1


def test_a_folder_that_cannot_be_made_is_an_error_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        DecisionRecorder(tmp_path / "file" / "folder")


def test_a_file_that_was_cut_short_is_read_as_far_as_it_goes(tmp_path, rounds):
    (file,) = record(tmp_path, rounds)
    file.write_bytes(file.read_bytes()[:-2000])
    recording = Recording(file)
    recorded = list(recording.rounds())
    assert 0 < len(recorded) < len(rounds)
    assert recording.cut_short
    assert_repeatable(recorded)


def changed_header(tmp_path, rounds, change):
    (file,) = record(tmp_path, rounds[:2])
    header, _, rest = content_of(file).partition(b"\n")
    read = json.loads(header)
    change(read)
    return rewritten(tmp_path / "other", json.dumps(read).encode() + b"\n" + rest)


def test_a_recording_of_another_version_says_so(tmp_path, rounds):
    file = changed_header(tmp_path, rounds, lambda header: header.update(version="0.0.9"))
    with pytest.raises(RecordingError, match=r"was recorded by version 0\.0\.9, and this is version"):
        Recording(file)


SAMPLE = "inflight_operator.observe.metrics.Sample"
VIEW = "inflight_operator.observe.gateway_view.GatewayView"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda fields: fields.remove("time"), "Sample has time here"),
        (lambda fields: fields.append("mood"), "Sample has mood there"),
        (lambda fields: fields.reverse(), "Sample has its fields in another order"),
    ],
)
def test_a_recording_of_other_types_names_the_field(tmp_path, rounds, change, said):
    file = changed_header(tmp_path, rounds, lambda header: change(header["types"][SAMPLE]))
    with pytest.raises(RecordingError, match=rf"another build of version .*: {said}"):
        Recording(file)


def test_a_recording_of_an_earlier_build_without_the_gateways_demand_is_read(tmp_path, rounds):
    def earlier(header):
        header["types"][VIEW].remove("demand")
        del header["types"]["inflight_operator.observe.gateway_view.GatewayDemand"]

    file = changed_header(tmp_path, rounds, earlier)
    recorded = list(Recording(file).rounds())
    assert len(recorded) == 2
    assert_repeatable(recorded)


@pytest.mark.parametrize("content", [b"", b"hello\n", b"[1]\n", b"{}\n", b'{"recording": "other"}\n'])
@pytest.mark.parametrize("compress", [bytes, zstandard.compress])
def test_another_file_is_no_recording(tmp_path, content, compress):
    file = tmp_path / "file"
    file.write_bytes(compress(content))
    with pytest.raises(RecordingError):
        Recording(file)


def test_a_recording_in_the_earlier_format_says_so(tmp_path):
    file = tmp_path / "decisions-000001.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"recording": "inflight-operator decisions", "version": "0.2.0"}\n'))
    with pytest.raises(RecordingError, match="format of an earlier version: replay it with the version that recorded"):
        Recording(file)


@pytest.mark.parametrize("more", [b"{}\n", b"a/b\n", b"a/b x\n", b"a/b 1\n\xc1", b"a/b 2\n[]"])
def test_a_round_that_cannot_be_understood_is_named(tmp_path, rounds, more):
    (file,) = record(tmp_path, rounds[:1])
    other = rewritten(tmp_path / "other", content_of(file) + more)
    with pytest.raises(RecordingError, match="cannot be understood in round 2"):
        list(Recording(other).rounds())


def test_a_damaged_file_names_the_last_round_that_can_be_read(tmp_path, rounds):
    (file,) = record(tmp_path, rounds)
    content = bytearray(file.read_bytes())
    content[-1000:] = b"\xff" * 1000
    file.write_bytes(content)
    recording = Recording(file)
    with pytest.raises(RecordingError, match=r"is damaged after round \d+"):
        list(recording.rounds())


async def test_rounds_of_the_operator_are_recorded_as_they_happen(tmp_path):
    world = World()
    world.recorder = DecisionRecorder(tmp_path)
    world.restart()
    world.service(spec=SPEC)
    engine = world.pod(1)
    for number in range(20):
        if number == 5:
            for _ in range(300):
                engine.model.add(50, 400)
        await world.round()
    world.restart()
    for _ in range(5):
        await world.round()
    delete(world.cache, "InferenceService", world.cache.service(KEY))
    await world.round()
    world.recorder.close()
    (file,) = tmp_path.iterdir()
    assert b"token of service-uid" not in content_of(file)
    recorded = list(Recording(file).rounds())
    assert len(recorded) == 25
    assert_repeatable(recorded)
    assert any(decision.kind == "Scaling" for one in recorded for decision in one.plan.decisions)

"""What the reader takes and what it refuses, each with a sentence."""

import gzip
import json

import pytest

from inflight_engine.recording.lines import FORMAT_VERSION, Repeated, Step
from inflight_engine.recording.reader import Recording, RecordingError
from inflight_engine.recording.replay import replay
from inflight_engine.recording.survey import Survey
from tests.engine.recording.workload import CONFIG, Workload


@pytest.fixture(scope="module")
def packed():
    return Workload(seed=9).run(600)


@pytest.fixture(scope="module")
def lines(packed):
    return gzip.decompress(packed).splitlines()


def write(path, lines):
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.gz"


def refusal(path):
    with pytest.raises(RecordingError) as raised:
        list(Recording(path).events())
    return str(raised.value)


def test_packed_and_plain_lines_read_the_same(path, packed, lines):
    path.write_bytes(packed)
    from_packed = list(Recording(path).events())
    recording = Recording(write(path, lines))
    assert list(recording.events()) == from_packed
    assert not recording.cut_short


def test_events_can_be_read_again(path, packed):
    path.write_bytes(packed)
    recording = Recording(path)
    assert list(recording.events()) == list(recording.events())


def test_a_last_line_without_its_end_is_read_if_it_is_whole(path, lines):
    path.write_bytes(b"\n".join(lines))
    recording = Recording(path)
    assert len(list(recording.events())) == len(lines) - 1
    assert not recording.cut_short


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.999])
def test_a_file_cut_short_is_read_and_replayed_as_far_as_it_goes(path, packed, lines, share):
    path.write_bytes(packed[: int(len(packed) * share)])
    recording = Recording(path)
    survey = Survey(recording.events())
    assert recording.cut_short
    assert 0 < survey.num_events < len(lines)
    assert replay(recording.header.config, recording.events(), survey) is None


def test_plain_lines_cut_short_are_read_as_far_as_they_go(path, lines):
    path.write_bytes(b"\n".join(lines)[:-3])
    recording = Recording(path)
    assert len(list(recording.events())) == len(lines) - 2
    assert recording.cut_short


def test_a_file_that_grows_is_replayed_as_far_as_it_was_surveyed(path, lines):
    recording = Recording(write(path, lines[:200]))
    survey = Survey(recording.events())
    write(path, lines)
    assert replay(CONFIG, recording.events(), survey) is None
    assert len(list(recording.events())) > survey.num_events


def test_a_newer_format_is_refused_by_name(path, lines):
    header = json.loads(lines[0]) | {"version": FORMAT_VERSION + 1, "program": "9.8.7", "config": "unheard of"}
    text = refusal(write(path, [json.dumps(header).encode(), *lines[1:]]))
    assert "inflight-engine 9.8.7" in text
    assert f"format {FORMAT_VERSION + 1}" in text


@pytest.mark.parametrize(
    "content", [b"# Read me\n", b'{"record": "\xff"}\n', b'{"record": "other", "version": 1}\n', b"[]\n", b"\xff\xfe\n"]
)
def test_another_file_is_no_recording(path, content):
    path.write_bytes(content)
    assert refusal(path).startswith("is no recording of inflight-engine")


def test_an_empty_file_is_refused(path):
    path.write_bytes(b"")
    assert refusal(path) == "is empty"


def test_a_file_cut_in_its_first_line_is_refused(path, packed):
    path.write_bytes(packed[:30])
    assert refusal(path) == "was cut short before its first line"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'["stop",1]', "Invalid value 'stop'"),
        (b'["cancel",1,"whim"]', "Invalid enum value 'whim'"),
        (b'["add",1,0.5,-3,1,"chat","",0,null,[]]', "Expected `int` >= 0"),
        (b"what?", "malformed"),
        (b'["blocks",1,[2,3,4]]', "a run of blocks without its length"),
        (b'["blocks",1,[2147483647,3]]', "a run of blocks beyond 2147483647"),
        (b'["cancel",1,"\xff\xfe"]', "'utf-8' codec can't decode"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_a_line_that_says_nothing_is_refused_with_its_number(path, lines, line, text):
    refused = refusal(write(path, [*lines[:40], line, *lines[40:]]))
    assert "line 41" in refused
    assert text in refused


def test_missing_steps_are_noticed(path, lines):
    place = next(place for place, line in enumerate(lines) if line.startswith(b'["same"'))
    assert "where step" in refusal(write(path, [*lines[:place], *lines[place + 1 :]]))


def test_a_repetition_of_nothing_is_refused(path, lines):
    assert "there was none before" in refusal(write(path, [lines[0], b'["same",[5]]']))


def test_a_slot_that_the_engine_did_not_have_is_refused(path, lines):
    assert "names slot 6 in line 2" in refusal(write(path, [lines[0], b'["step",0,9,[],[],[],[],[6],1,[]]']))


def test_a_damaged_file_is_refused(path, packed):
    middle = len(packed) // 2
    path.write_bytes(packed[:middle] + bytes(64) + packed[middle + 64 :])
    # Some of what the bytes still decompress to are lines, and then one of them is out of its place.
    assert any(says in refusal(path) for says in ("damaged", "cannot be understood", "should be"))


def test_the_reader_counts_every_step(path, packed, lines):
    path.write_bytes(packed)
    events = list(Recording(path).events())
    steps = sum(isinstance(each, Step) for each in events)
    steps += sum(len(each.micros) for each in events if isinstance(each, Repeated))
    assert Survey(events).num_steps == steps > 100

"""The reader accepts recordings, and refuses other files with a sentence."""

import gzip
import json

import pytest
from msgspec.structs import replace as altered

from inflight_cost.model import StepWork
from inflight_engine.recording.lines import FORMAT_VERSION, Step
from inflight_engine.recording.reader import Recording, RecordingError
from inflight_engine.recording.replay import Survey, replay
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
    assert list(recording.events()) == list(Recording(write(path, lines)).events())
    assert not recording.cut_short


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_a_file_cut_short_is_read_and_replayed_as_far_as_it_goes(path, packed, share):
    path.write_bytes(packed)
    whole = list(Recording(path).events())
    path.write_bytes(packed[: int(len(packed) * share)])
    recording = Recording(path)
    survey = Survey(recording.events())
    assert recording.cut_short
    assert 0 < survey.num_events < len(whole)
    assert replay(recording.header.config, recording.events(), survey) is None


def test_plain_lines_cut_short_are_read_as_far_as_they_go(path, lines):
    path.write_bytes(b"\n".join(lines)[:-3])
    recording = Recording(path)
    events = list(recording.events())
    assert recording.cut_short
    assert events == list(Recording(write(path, lines[:-1])).events())


def test_a_file_that_grows_is_replayed_as_far_as_it_was_surveyed(path, lines):
    recording = Recording(write(path, lines[:200]))
    survey = Survey(recording.events())
    write(path, lines)
    assert replay(CONFIG, recording.events(), survey) is None
    assert len(list(recording.events())) > survey.num_events


@pytest.mark.parametrize("version", [*range(1, FORMAT_VERSION), FORMAT_VERSION + 1])
def test_another_format_is_refused_by_name(path, lines, version):
    header = json.loads(lines[0]) | {"version": version, "program": "9.8.7", "config": "unheard of"}
    assert refusal(write(path, [json.dumps(header).encode(), *lines[1:]])) == (
        f"was written by inflight-engine 9.8.7 in format {version}, and this program reads format {FORMAT_VERSION}: "
        "replay it with that version"
    )


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
        (b'["add",1,0.5,-3,0,1,{},[]]', "Expected `int` >= 0"),
        (b"what?", "malformed"),
        (b'["blocks",1,[[2,3],[4]]]', "Expected `array` of length 2"),
        (b'["blocks",1,[[0,2147483648]]]', "Expected `int` <= 2147483647"),
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
    for named in (b"[6],[],[]", b"[],[6],[]", b"[],[],[[6,2]]"):
        step = b'["step",0,9,[0,0,0,0,0],1,[],false,%s]' % named
        assert "names slot 6 in line 2" in refusal(write(path, [lines[0], step]))


def test_a_damaged_file_is_refused(path, packed):
    middle = len(packed) // 2
    path.write_bytes(packed[:middle] + bytes(64) + packed[middle + 64 :])
    # Some of what the bytes still decompress to are lines, and then one of them is out of its place.
    assert any(says in refusal(path) for says in ("damaged", "cannot be understood", "should be"))


def test_the_reader_repeats_steps_one_by_one(path, packed, lines):
    path.write_bytes(packed)
    events = list(Recording(path).events())
    steps = [each.step for each in events if isinstance(each, Step)]
    parsed = list(map(json.loads, lines[1:]))
    repeated = [len(line[1]) for line in parsed if line[0] == "same"]
    assert sum(repeated) > 20
    assert len(steps) == sum(line[0] == "step" for line in parsed) + sum(repeated)
    assert steps == list(range(Survey(events).num_steps))
    assert Survey(events).num_steps > 100


def test_a_repeated_step_computes_as_many_tokens_from_a_longer_context(path, lines):
    step = b'["step",0,9,[3,0,100,0,0],77,[],true,[],[],[]]'
    first, *repeated = Recording(write(path, [lines[0], step, b'["same",[5,6]]'])).events()
    assert repeated == [
        altered(first, step=1, micros=5, work=StepWork(3, 0, 103, 0, 0)),
        altered(first, step=2, micros=6, work=StepWork(3, 0, 106, 0, 0)),
    ]

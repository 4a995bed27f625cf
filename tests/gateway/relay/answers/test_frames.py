from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.relay.answers.frames import (
    MAX_FRAME_BYTES,
    MAX_FRAMES,
    MAX_LINES,
    ONE_TOKEN,
    Frame,
    FrameParser,
    FrameTooLong,
)

LINES = st.sampled_from([b":h", b":t 0 1,2", b":f 1 stop", b"data: {}", b"data: [DONE]", b"data: caf\xc3\xa9 : x"])
TEXTS = st.lists(st.lists(LINES, min_size=1, max_size=4), max_size=8)


@given(texts=TEXTS, cuts=st.lists(st.integers(0, 400)), rest=st.sampled_from([b"", b":t 0", b"data: half\n"]))
def test_frames_are_the_same_however_their_bytes_are_cut(texts, cuts, rest):
    whole = b"".join(b"\n".join(lines) + b"\n\n" for lines in texts) + rest
    ends = sorted({min(cut, len(whole)) for cut in cuts} | {len(whole)})
    parser, frames, begin = FrameParser(), [], 0
    for end in ends:
        frames += parser.feed(whole[begin:end])
        begin = end
    expected = []
    for lines in texts:
        data = [line for line in lines if not line.startswith(b":")]
        notes = tuple(line[1:] for line in lines if line.startswith(b":"))
        expected.append(Frame(notes, b"\n".join(data) + b"\n\n" if data else b""))
    assert [frame for frame in frames if frame != Frame((), b"")] == expected


def test_a_frame_is_bounded():
    parser = FrameParser()
    assert parser.feed(b"x" * MAX_FRAME_BYTES) == []
    assert parser.size == MAX_FRAME_BYTES
    with pytest.raises(FrameTooLong):
        parser.feed(b"x")


def test_lines_of_a_frame_are_bounded_before_they_are_parsed():
    parser = FrameParser()
    parser.feed(b":t\n" * MAX_LINES)
    assert len(parser.feed(b"\n")) == 1
    parser.feed(b":t\n" * (MAX_LINES + 2))
    with pytest.raises(FrameTooLong):
        parser.feed(b"\n")


@given(cut=st.integers(0, 40))
def test_a_frame_that_has_begun_has_its_notes_once_they_are_complete(cut):
    sent = b":u {}\n:w 200\ndata: " + b"x" * 30
    parser = FrameParser()
    parser.feed(sent[:cut])
    found = parser.begun()
    assert found == (None if cut < 19 else Frame((b"u {}", b"w 200"), b"x" * (cut - 19)))


def test_data_without_notes_and_notes_without_end_are_no_whole_answer():
    for sent in (b"data: x", b":t 0 1\n" * 10_000 + b"data: x", b"event: a\ndata: x", b":w 200\nevent: a\ndata: x"):
        parser = FrameParser()
        parser.feed(sent)
        assert parser.begun() is None


def test_frames_of_one_read_are_bounded_before_they_are_parsed():
    parser = FrameParser()
    assert len(parser.feed(b":h\n\n" * MAX_FRAMES)) == MAX_FRAMES
    with pytest.raises(FrameTooLong):
        parser.feed(b":h\n\n" * (MAX_FRAMES + 1))


def test_a_frame_in_many_parts_takes_linear_time():
    parser = FrameParser()
    for _ in range(20_000):
        parser.feed(b"x" * 100)
    (frame,) = parser.feed(b"\n\n")
    assert len(frame.data) == 2_000_002


def test_several_events_of_one_frame_come_together():
    sent = b":t 0 5\nevent: a\ndata: {}\n\r\nevent: b\ndata: {}\n\n"
    data = b"event: a\ndata: {}\n\nevent: b\ndata: {}\n\n"
    for cut in range(len(sent)):
        parser = FrameParser()
        assert [*parser.feed(sent[:cut]), *parser.feed(sent[cut:])] == [Frame((b"t 0 5",), data)]
    assert FrameParser().feed(sent.partition(b"\n")[2]) == [Frame((), data)]
    assert not ONE_TOKEN.fullmatch(sent)
    assert ONE_TOKEN.fullmatch(b":t 0 5\nevent: a\ndata: {}\n\n")

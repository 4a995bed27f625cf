from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.relay.answers.frames import (
    MAX_EVENT_BYTES,
    MAX_FRAMES,
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
    parser, frames, begin = FrameParser(MAX_EVENT_BYTES), [], 0
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
    parser = FrameParser(100)
    assert parser.feed(b"x" * 100) == []
    assert parser.size == 100
    with pytest.raises(FrameTooLong):
        parser.feed(b"x")


def test_frames_of_one_read_are_bounded_before_they_are_parsed():
    parser = FrameParser(MAX_EVENT_BYTES)
    assert len(parser.feed(b":h\n\n" * MAX_FRAMES)) == MAX_FRAMES
    with pytest.raises(FrameTooLong):
        parser.feed(b":h\n\n" * (MAX_FRAMES + 1))


def test_a_frame_in_many_parts_takes_linear_time():
    parser = FrameParser(2**22)
    for _ in range(20_000):
        parser.feed(b"x" * 100)
    (frame,) = parser.feed(b"\n\n")
    assert len(frame.data) == 2_000_002


def test_several_events_of_one_frame_come_together():
    sent = b":t 0 5\nevent: a\ndata: {}\n\r\nevent: b\ndata: {}\n\n"
    data = b"event: a\ndata: {}\n\nevent: b\ndata: {}\n\n"
    for cut in range(len(sent)):
        parser = FrameParser(1000)
        assert [*parser.feed(sent[:cut]), *parser.feed(sent[cut:])] == [Frame((b"t 0 5",), data)]
    assert FrameParser(1000).feed(sent.partition(b"\n")[2]) == [Frame((), data)]
    assert not ONE_TOKEN.fullmatch(sent)
    assert ONE_TOKEN.fullmatch(b":t 0 5\nevent: a\ndata: {}\n\n")

"""The usual frame, of one token, is passed on as any other frame is."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inflight_gateway.relay.answers.answer import _LOOK_EVERY, Answer
from inflight_gateway.relay.answers.frames import DONE, ONE_TOKEN, Frame, FrameParser
from inflight_gateway.relay.delivery import Delivery
from tests.gateway.relay.fake_engine import Do
from tests.gateway.relay.test_continue import STREAM

NOTES = st.one_of(
    st.builds(lambda index, token: b":t %d %d" % (index, token), st.integers(0, 2), st.integers(0, 99)),
    st.sampled_from([b":t 0 1,2", b":t 0 ", b":t 0", b":t x 1", b":t 0 x", b":t -1 1", b":t 1 1 1"]),
)


PIECES = st.sampled_from(
    [b":", b"t ", b"0", b" ", b"17", b"\n", b"data:", b" {", b" x", b" [DONE]", b"\r", b",", b"f 0 stop"]
)


@given(st.lists(PIECES, max_size=12).map(b"".join))
@example(b":t 0 1\ndata: {}\n\n")
@example(b":t 0 1\ndata: {}\n\n\n")
@example(b":t 0 1\ndata: [DONE]\n\n")
def test_a_frame_taken_at_once_is_read_as_the_parser_reads_it(text):
    found = ONE_TOKEN.fullmatch(text)
    if found is not None:
        index, token, data = found.groups()
        assert data != DONE
        assert FrameParser().feed(text) == [Frame((b"t %b %b" % (index, token),), data)]


def token(answer, note):
    """Applies a note as the usual frame of a stream, if it is one."""
    found = ONE_TOKEN.fullmatch(note + b"\ndata: {}\n\n")
    return found is not None and answer.token(*found.groups()[:2])


@given(st.lists(NOTES, max_size=40), st.integers(1, 12))
def test_a_token_taken_at_once_leaves_the_state_that_take_leaves(notes, most):
    quick, slow = Answer(2, most), Answer(2, most)
    for note in notes:
        try:
            slow.take([note[1:]])
        except ValueError:
            assert not token(quick, note)
            return
        if not token(quick, note):
            quick.take([note[1:]])
        assert (quick.num_tokens, quick.size, quick.advanced) == (slow.num_tokens, slow.size, slow.advanced)
    assert {index: choice.tokens for index, choice in quick._choices.items()} == {
        index: choice.tokens for index, choice in slow._choices.items()
    }


def test_most_tokens_are_taken_at_once_and_some_go_the_way_where_memory_is_counted():
    answer, at_once = Answer(1), 0
    for number in range(10 * _LOOK_EVERY):
        note = b":t 0 %d" % number
        taken = token(answer, note)
        at_once += taken
        if not taken:
            answer.take([note[1:]])
    assert at_once == 10 * _LOOK_EVERY - 11


FRAMES = [
    b':t 0 %05d\ndata: {"created":5,"text":"%05d","usage":null}\n\n' % (number, number)
    for number in range(10_000, 10_040)
]


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}], ids=["stripped", "as they are"])
async def test_frames_that_come_one_by_one_reach_the_client_and_are_continued(relay, monkeypatch, options):
    at_once = []
    real = Delivery.token
    monkeypatch.setattr(Delivery, "token", lambda self, data, now: at_once.append(data) or real(self, data, now))
    done = b"data: [DONE]\n\n"
    one = len(FRAMES[0])
    relay.script(
        Do(frames=b"".join(FRAMES[:20]), cut=20 * one, split=one, pause_s=0.002),
        Do(frames=b"".join(FRAMES[20:]) + done, split=one, pause_s=0.002),
    )
    _, _, body = await relay.post({**STREAM, **options, "max_tokens": 100})
    expected = b"".join(frame.partition(b"\n")[2] for frame in FRAMES) + done
    assert body == (expected if options else expected.replace(b',"usage":null', b""))
    assert len(at_once) > 20
    given = relay.engine.seen[1].json["inflight_continuation"]["choices"][0]["token_ids"]
    assert given == list(range(10_000, 10_020))

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.channel import ChannelClosedError, EngineChannel, FrameDecoder, encode
from inflight_engine.messages import (
    AddRequest,
    Admission,
    CancelRequest,
    Configure,
    Configured,
    EngineFailed,
    Finished,
    FlushRecord,
    Imported,
    RecordFlushed,
    Shutdown,
    StepReport,
    StepStats,
)
from inflight_engine.output import TokenLogprobs
from inflight_engine.request import FinishReason, SamplingParams, Scheduling
from inflight_settings.limits import Limits, LimitsInForce

TO_ENGINE = [
    AddRequest(1, b"\1\0\0\0", SamplingParams(max_tokens=3, temperature=0.5, stop_token_ids=(2, 3)), 12.5),
    AddRequest(
        2,
        b"\2\0\0\0",
        SamplingParams(max_tokens=3, logit_bias=((7, -1.5), (8, 100.0)), logprobs=2),
        13.5,
        scheduling=Scheduling(service_class="batch", priority=-3, tenant="t", cache_salt="s", predicted_tokens=2),
    ),
    AddRequest(3, None, SamplingParams(max_tokens=3), 14.5, scheduling=Scheduling(resumes=False)),
    CancelRequest(1, FinishReason.STOP),
    Configure(9, LimitsInForce(Limits(4, 64), 2)),
    Configure(10, LimitsInForce(Limits(4, 64), 2), {"batch": 0.5}),
    FlushRecord(11),
    Shutdown(),
]
STATS = StepStats(1, 2, 3, 0.5, 4, 5, 6, 7, 8, 9, 0.01, 0.001)
LOGPROBS = [TokenLogprobs(0, -0.25, [7, 9], [-0.25, -1.5])]
FINISHED = [Finished(1, FinishReason.LENGTH)]
FROM_ENGINE = [
    Imported(),
    StepReport(3, [Admission(1, 0)], b"\0\0\0\0", b"\7\0\0\0", LOGPROBS, FINISHED, STATS),
    Configured(10, LimitsInForce(Limits(4, 64), 2), {"batch": 0.5, "chat": 1.0}),
    RecordFlushed(11),
    EngineFailed("out of memory"),
]


@given(st.lists(st.integers(1, 40), max_size=60))
def test_messages_survive_any_cutting_of_the_stream(cuts):
    stream = b"".join(encode(message) for message in TO_ENGINE)
    decoder = FrameDecoder.for_engine()
    received = []
    start = 0
    for cut in [*cuts, len(stream)]:
        received += decoder.feed(stream[start : start + cut])
        start += cut
    assert received == TO_ENGINE


def test_every_report_arrives_as_it_was_sent():
    assert FrameDecoder.for_api().feed(b"".join(encode(message) for message in FROM_ENGINE)) == FROM_ENGINE


def test_it_is_quiet_until_something_arrives_or_another_thread_wakes():
    ours, theirs = socket.socketpair()
    channel = EngineChannel(ours)
    assert channel.quiet(0.001)
    theirs.sendall(encode(TO_ENGINE[0]))
    assert not channel.quiet(10)
    assert channel.receive(wait=True) == TO_ENGINE[:1]
    channel.wake()
    assert not channel.quiet(10)


def test_receive_returns_all_that_is_there_and_does_not_wait_unless_asked():
    ours, theirs = socket.socketpair()
    channel = EngineChannel(ours)
    assert channel.receive(wait=False) == []
    theirs.sendall(encode(TO_ENGINE[0]) + encode(TO_ENGINE[1]))
    assert channel.receive(wait=True) == TO_ENGINE[:2]
    theirs.close()
    with pytest.raises(ChannelClosedError):
        channel.receive(wait=True)
    with pytest.raises(ChannelClosedError):
        channel.send(FROM_ENGINE[0])

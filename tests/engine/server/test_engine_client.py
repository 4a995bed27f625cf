"""The asyncio end of the socket: whatever pieces the bytes come in, the messages are the same."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.channel import encode
from inflight_engine.messages import Configured, EngineFailed, StepReport, StepStats
from inflight_engine.output import TokenLogprobs
from inflight_engine.server.engine.link import EngineClient
from inflight_settings.limits import Limits, LimitsInForce

NUMBERS = st.integers(0, 2**31)
MESSAGES = st.one_of(
    st.builds(EngineFailed, st.text(max_size=300)),
    st.builds(
        Configured, NUMBERS, st.builds(LimitsInForce, st.builds(Limits, NUMBERS, NUMBERS), NUMBERS), st.just({"a": 0.5})
    ),
    st.builds(
        StepReport,
        NUMBERS,
        st.just([]),
        st.binary(max_size=600),
        st.binary(max_size=600),
        st.just([TokenLogprobs(3, -0.5, [7, 8], [-0.5, -1.5])]),
        st.just([]),
        st.just(StepStats(1, 2, 3, 0.5, 4, 0, 7, 8, 5, 6, 0.25, 0.125)),
    ),
)


@given(st.lists(MESSAGES, max_size=6), st.data())
def test_messages_survive_any_cutting_of_the_stream(messages, data):
    stream = b"".join(map(encode, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    received, lost = [], []
    client = EngineClient(received.append, lost.append)
    for begin, end in itertools.pairwise([0, *cuts, len(stream)]):
        client.data_received(stream[begin:end])
    assert received == messages
    assert not lost


def test_what_is_no_message_is_a_failure_with_a_sentence():
    lost = []
    client = EngineClient(lambda message: None, lost.append)
    client.data_received((3).to_bytes(4, "little") + b"abc")
    assert len(lost) == 1
    assert "one version" in lost[0]


def test_the_end_of_the_connection_is_told():
    lost = []
    EngineClient(lambda message: None, lost.append).connection_lost(None)
    assert lost == [None]

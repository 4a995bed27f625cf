"""The answer is that of an undisturbed run, whatever happens to the engines."""

from __future__ import annotations

import json
import re

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inflight_gateway.relay.decide import Limits
from inflight_gateway.relay.shared import Tuning
from tests.gateway.relay.conftest import Setup
from tests.gateway.relay.fake_engine import CREATED, Do, frames_for

STREAM = {"model": "m", "stream": True, "max_tokens": 7, "messages": [{"role": "user", "content": "hi"}]}
WHOLE = {key: value for key, value in STREAM.items() if key != "stream"}
LOST = b':e 503 retry\ndata: {"error":{"message":"engine died"}}\n\n'


def undisturbed(asked: dict) -> bytes:
    """Answer that a client gets if nothing fails."""
    frames = frames_for(asked)
    if asked.get("stream"):
        return b"".join(line + b"\n\n" for line in frames.split(b"\n") if line.startswith(b"data:"))
    return frames.rstrip(b"\n").rsplit(b"\ndata: ", 1)[1]


def same(body: bytes, asked: dict) -> bool:
    """True if it is the undisturbed answer; the time at which it began may be that of a later attempt, but only one."""
    created = set(re.findall(rb'"created": ?(\d+)', body))
    assert len(created) == 1
    return body.replace(created.pop(), b"%d" % CREATED) == undisturbed(asked)


@pytest.mark.parametrize("asked", [STREAM, WHOLE, {**STREAM, "seed": 5}], ids=["stream", "whole", "seeded"])
async def test_an_undisturbed_answer_passes_without_its_notes(relay, asked):
    status, headers, body = await relay.post(asked)
    assert (status, body) == (200, undisturbed(asked))
    assert not [name for name in headers if name.startswith("x-inflight")]
    if asked is WHOLE:
        assert headers["content-type"] == "application/json"
        assert int(headers["content-length"]) == len(body)
    else:
        assert headers["content-type"] == "text/event-stream"
    assert [ask.attempt for ask in relay.picker.asked] == [1]
    assert relay.engine.seen[0].headers["x-inflight-progress"] == "1"
    assert relay.engine.seen[0].headers["host"] == "svc.ns"


@pytest.mark.parametrize("asked", [STREAM, WHOLE, {**STREAM, "n": 2, "max_tokens": 3}], ids=["stream", "whole", "two"])
async def test_a_cut_at_any_byte_makes_no_difference(relay, asked):
    for cut in range(len(frames_for(asked))):
        relay.script(Do(cut=cut), Do())
        status, _, body = await relay.post(asked)
        assert status == 200
        assert same(body, asked), cut


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_cuts_errors_and_splits_of_any_kind_make_no_difference(data, tmp_path_factory):
    asked = {
        **data.draw(st.sampled_from([STREAM, WHOLE])),
        "n": data.draw(st.integers(1, 3)),
        "max_tokens": data.draw(st.integers(1, 8)),
        **data.draw(st.sampled_from([{}, {"seed": 9}])),
    }
    length = len(frames_for(asked))
    frame_ends = [match.end() for match in re.finditer(rb"\n\n", frames_for(asked))]
    steps = data.draw(
        st.lists(
            st.one_of(
                st.builds(Do, cut=st.integers(0, length), split=st.sampled_from([0, 1, 7, 50])),
                st.builds(Do, cut=st.sampled_from(frame_ends[:3]), error=st.just(LOST)),
                st.builds(Do, no_head=st.just(True)),
            ),
            max_size=4,
        )
    )
    steps.append(Do(split=data.draw(st.sampled_from([0, 3, 100]))))

    async def check() -> None:
        tuning = Tuning(silence_s=2.0, limits=Limits(max_deaths=6))
        setup = await Setup(tmp_path_factory.mktemp("relay")).start(tuning)
        try:
            await setup.configure(max_attempts=6)
            setup.script(*steps)
            status, _, body = await setup.post(asked)
            assert status == 200
            assert same(body, asked)
        finally:
            await setup.stop()

    uvloop.run(check())


async def test_a_continuation_has_tokens_seeds_finish_reasons_and_time_of_all_choices(relay):
    asked = {**STREAM, "n": 3, "max_tokens": 4}
    frames = frames_for(asked)
    cut = frames.index(b":f 2 length")  # that of choice 2 has the fewest tokens
    cut = frames.index(b"\n\n", cut) + 2
    relay.script(Do(cut=cut), Do())
    _, _, body = await relay.post(asked)
    assert same(body, asked)
    field = relay.engine.seen[1].json["inflight_continuation"]
    assert field["created"] == CREATED
    assert [choice["seed"] for choice in field["choices"]] == [11, 22, 33]
    assert [choice["finish_reason"] for choice in field["choices"]] == [None, None, "length"]
    assert [len(choice["token_ids"]) for choice in field["choices"]] == [2, 2, 2]


async def test_prompts_without_a_token_yet_are_choices_too(relay):
    asked = {"stream": True, "max_tokens": 3, "prompt": ["a", "b"], "n": 1}
    relay.script(Do(frames=b':t 0 5\ndata: {"a":1}\n\n', cut=99), Do(frames=b"data: [DONE]\n\n"))
    _, _, body = await relay.post(asked, "/v1/completions")
    assert body == b'data: {"a":1}\n\ndata: [DONE]\n\n'
    choices = relay.engine.seen[1].json["inflight_continuation"]["choices"]
    assert [choice["token_ids"] for choice in choices] == [[5], []]


async def test_only_the_whole_answer_of_a_request_without_stream_reaches_the_client(relay):
    frames = b'data: {"role":1}\n\n:t 0 5\ndata: {"text":1}\n\n:f 0 stop\n:w 200\ndata: {"all":1}\n\n'
    relay.script(Do(frames=frames))
    assert (await relay.post(WHOLE))[2] == b'{"all":1}'


async def test_all_that_failed_are_avoided_and_reported(relay):
    frames = frames_for(STREAM)
    middle = frames.index(b"\n\n", len(frames) // 3) + 2
    relay.script(Do(cut=middle), Do(cut=0), Do())
    _, _, body = await relay.post(STREAM)
    assert same(body, STREAM)
    report = await relay.report()
    first, second, third, _ = relay.engine.addresses
    assert [ask.avoid for ask in relay.picker.asked] == [(), (first,), (first, second)]
    assert relay.picker.answering == []  # it picked all of them
    assert report["endpoints"] == [first, second, third]
    assert report["continuations"] == 2
    assert report["status"] == 200
    assert report["error"] == ""


async def test_an_error_after_the_head_is_an_event_and_no_done(relay):
    frames = frames_for(STREAM)
    error = b':e 500 final\ndata: {"error":{"message":"broken"}}\n\n'
    relay.script(Do(cut=frames.index(b":f "), error=error))
    status, _, body = await relay.post(STREAM)
    assert status == 200
    assert body.endswith(b'data: {"error":{"message":"broken"}}\n\n')
    assert b"[DONE]" not in body
    assert len(relay.engine.seen) == 1
    assert (await relay.report())["error"] == "engine_failed"


async def test_attempts_are_bounded_and_the_client_learns_of_it(relay):
    first = [match.end() for match in re.finditer(rb":t [^\n]*\n[^\n]*\n\n", frames_for(STREAM))]
    relay.script(Do(cut=first[0]), Do(cut=first[0], error=LOST), Do(cut=0))
    status, _, body = await relay.post(STREAM)
    assert status == 200
    assert json.loads(body.rstrip().rsplit(b"data: ", 1)[1])["error"]["code"] == "engine_lost"
    assert len(relay.engine.seen) == 3


async def test_with_a_single_replica_the_answer_goes_on_once_it_is_back(relay):
    frames = frames_for(STREAM)
    middle = frames.index(b"\n\n", len(frames) // 2) + 2
    busy = Do(refuse=503, headers=(("retry-after", "1"),))
    relay.script(Do(cut=middle, error=LOST), busy, busy, Do())
    _, _, body = await relay.post(STREAM)
    assert same(body, STREAM)
    assert [ask.avoid for ask in relay.picker.asked] == [(), (relay.engine.addresses[0],), (), ()]

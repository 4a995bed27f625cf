"""The events of streams are well formed, whatever an answer has and however it is cut into pieces."""

from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.formats.events import CallEvent, TextEvent
from inflight_engine.server.answers.blocks import Blocks
from inflight_engine.server.answers.events import CallIds
from inflight_engine.server.messages.events import MessageEvents
from inflight_engine.server.responses.events import ResponseEvents
from tests.engine.server.sse import message_of, response_of

TEXTS = st.lists(st.text(max_size=4), min_size=1, max_size=4)
PARTS = st.lists(st.tuples(st.sampled_from(["content", "reasoning", "f", "g"]), TEXTS), max_size=6)
"""Parts of an answer: kinds of text, or functions that are called, and the pieces of their text."""


def events_of(parts):
    """Events as the parser of answers makes them: a call begins with its name."""
    count = 0
    for kind, pieces in parts:
        if kind in ("content", "reasoning"):
            yield from (TextEvent(kind, piece) for piece in pieces if piece)
            continue
        yield CallEvent(count, kind, arguments=pieces[0])
        yield from (CallEvent(count, arguments=piece) for piece in pieces[1:])
        count += 1


def expected(parts):
    """Kinds and texts of the blocks: texts of a kind that follow each other are one."""
    found = []
    for kind, pieces in parts:
        text = "".join(pieces)
        if kind not in ("content", "reasoning"):
            found.append([kind, text])
        elif text and found and found[-1][0] == kind:
            found[-1][1] += text
        elif text:
            found.append([kind, text])
    return found or [["content", ""]]


def changes(parts, *, cut):
    blocks = Blocks(CallIds("x", short=False))
    yield from blocks.take(events_of(parts))
    yield from blocks.finish(cut=cut)


@given(PARTS, st.booleans())
def test_a_response_has_numbered_events_and_one_end(parts, cut):
    made = ResponseEvents("resp_x")
    found = made.begin({})
    found += made.of(changes(parts, cut=cut), iter(()))
    items = [each["item"] for each in found if each["type"] == "response.output_item.done"]
    status = "incomplete" if cut else "completed"
    found.append(made.event(f"response.{status}", response={"status": status, "output": items}))
    told = response_of(found)["output"]
    assert [each["status"] for each in told] == ["completed"] * (len(told) - 1) + [status]
    assert len({each["id"] for each in told}) == len(told)
    kinds = {"message": "content", "reasoning": "reasoning"}
    read = [
        [each["name"], each["arguments"]]
        if each["type"] == "function_call"
        else [kinds[each["type"]], each["content"][0]["text"]]
        for each in told
    ]
    assert read == expected(parts)


@given(PARTS, st.booleans())
def test_a_message_has_blocks_that_follow_each_other(parts, cut):
    made = MessageEvents("msg_x")
    found = [
        {"type": "message_start", "message": {"content": [], "stop_reason": None, "usage": {}}},
        *made.of(changes(parts, cut=cut)),
        {"type": "message_delta", "delta": {}, "usage": {}},
        {"type": "message_stop"},
    ]
    read = []
    for each in message_of(found)["content"]:
        match each["type"]:
            case "tool_use":
                read.append([each["name"], each["input"] or ""])
            case "thinking":
                assert each["signature"]
                read.append(["reasoning", each["thinking"]])
            case _:
                read.append(["content", each["text"]])
    assert read == expected(parts)

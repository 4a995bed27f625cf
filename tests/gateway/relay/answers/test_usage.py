"""Token counts that the gateway asks for, and their removal."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.relay.answers import json_usage
from inflight_gateway.relay.answers.answer import Usage
from inflight_gateway.relay.answers.json_usage import UsageReader
from inflight_gateway.relay.answers.usage import PlainUsage, with_usage, without_usage

CHAT, TEXT = b"/v1/chat/completions", b"/v1/completions"
COUNTS = {"prompt_tokens": 7, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def event(**fields) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


def content(text: str, **more) -> bytes:
    return event(id="x", choices=[{"index": 0, "delta": {"content": text}}], **more)


DONE = b"data: [DONE]\n\n"
LAST = event(id="x", choices=[], usage=COUNTS)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("given", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False}}])
def test_a_stream_is_asked_for_counts_that_its_client_did_not_ask_for(path, given):
    asked = {"stream": True, "n": 2, "prompt": "a } b", **given, "é": [1.0, 1e2]}
    changed = with_usage(json.dumps(asked).encode() + b" \n", path)
    assert changed is not None
    assert json.loads(changed) == {**asked, "stream_options": {"include_usage": True}}
    assert with_usage(changed, path) is None, "a later attempt would change it again"


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream":false}',
        b"{}",
        b'{"stream":"yes"}',
        b'{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}',
        b'{"stream":true,"stream_options":7}',
        b'{"stream":true,"stream_options":{"include_usage":"x"}}',
    ],
)
def test_other_requests_are_left_as_they_are(body):
    assert with_usage(body, CHAT) is None


def test_a_path_without_such_a_field_is_left_as_it_is():
    assert with_usage(b'{"stream":true}', b"/v1/generate") is None


@given(fields=st.dictionaries(st.text(max_size=8), JSON, max_size=6), options=st.sampled_from([None, {}, {"x": 1}]))
def test_other_fields_stay_byte_for_byte(fields, options):
    texts = {key: json.dumps(value, indent=1) for key, value in fields.items()}
    texts |= {"stream": "true", "stream_options": json.dumps(options), "number": "1.0000000000000000001e-7"}
    body = "{" + ",".join(f"{json.dumps(key)} : {text}" for key, text in texts.items()) + "}"
    changed = with_usage(body.encode(), CHAT).decode()
    for key, text in texts.items():
        assert key == "stream_options" or text in changed
    assert json.loads(changed)["stream_options"] == {**(options or {}), "include_usage": True}


def test_a_frame_has_no_counts_for_its_client():
    assert without_usage(LAST, counts=True) == b""
    assert without_usage(content("a", usage=None), counts=False) == content("a")
    quoted = content(',"usage":null')
    assert without_usage(quoted, counts=False) == quoted


@given(
    texts=st.lists(st.sampled_from(["a", "é", "", '"choices":[]', '"usage"', "\n\n", '{"usage":null}']), max_size=6),
    cuts=st.lists(st.integers(0, 900), max_size=8),
    line=st.sampled_from([b"\n", b"\r\n"]),
    null=st.booleans(),
)
def test_a_plain_stream_loses_its_counts_and_nothing_else_however_it_is_cut(texts, cuts, line, null):
    shown = b"".join(content(text) for text in texts) + b": note\n\n"
    sent = b"".join(content(text, **({"usage": None} if null else {})) for text in texts) + b": note\n\n" + LAST + DONE
    shown, sent = (shown + DONE).replace(b"\n", line), sent.replace(b"\n", line)
    plain, got, begin = PlainUsage(strip=True), b"", 0
    for end in sorted({min(cut, len(sent)) for cut in cuts} | {len(sent)}):
        got += plain.take(sent[begin:end])
        begin = end
    assert got + plain.end() == shown
    assert plain.usage == Usage(7, 4, 9)


def test_without_counts_events_with_text_count_as_a_lower_bound():
    for strip in (True, False):
        plain = PlainUsage(strip=strip)
        for each in (
            event(choices=[{"delta": {"role": "assistant", "content": ""}}]),
            content("a"),
            content("b"),
            DONE,
        ):
            plain.take(each)
        assert plain.usage == Usage(completion_tokens=2)
    assert PlainUsage(strip=False).usage is None


def test_a_client_that_asked_gets_the_counts_once():
    plain = PlainUsage(strip=False)
    assert plain.take(content("a")) + plain.take(LAST) + plain.take(DONE) == content("a") + LAST + DONE
    assert plain.usage == Usage(7, 4, 9)


def test_an_event_too_long_to_be_kept_passes_in_parts():
    plain = PlainUsage(strip=True)
    long = content("x" * 500_000)
    parts = [long[begin : begin + 50_000] for begin in range(0, len(long), 50_000)]
    assert (
        b"".join(plain.take(part) for part in parts) + plain.take(LAST + content("b") + DONE)
        == long + content("b") + DONE
    )
    assert plain.kept_bytes == 0


def test_counts_of_a_whole_answer_are_those_at_its_end():
    plain = PlainUsage(strip=False)
    text = re.sub(r"\s", "", json.dumps(COUNTS))
    plain.take(b'{"choices":[{"text":"\\"prompt_tokens\\":99' + b"x" * 5000 + b'"}],"usage":' + text.encode() + b"}")
    assert plain.usage == Usage(7, 4, 9)


def test_absurd_counts_are_not_read():
    plain = PlainUsage(strip=False)
    plain.take(b'{"usage":{"completion_tokens":' + b"9" * 400 + b"}}")
    assert plain.usage is None


ANTHROPIC = {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 9}
RESPONSES = {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 9}


def named(name: str, **fields) -> bytes:
    return f"event: {name}\n".encode() + event(type=name, **fields)


@pytest.mark.parametrize(
    "parts",
    [
        [json.dumps({"content": [{"text": "x" * 9000}], "usage": ANTHROPIC}).encode()],
        [
            named("message_start", message={"usage": {**ANTHROPIC, "output_tokens": 1}}),
            *[named("content_block_delta", delta={"text": '"output_tokens": 2,' * 9})] * 300,
            named("message_delta", usage={"output_tokens": 9}) + named("message_stop"),
        ],
        [*[named("response.output_text.delta", delta="x" * 99)] * 99, named("response.completed", usage=RESPONSES)],
        [json.dumps({"id": "r", "output": [{"text": "x" * 9000}], "usage": RESPONSES}).encode()],
        [json.dumps({"id": "rerank", "usage": COUNTS, "results": ["x" * 9000]}).encode()],
    ],
    ids=["message", "messages", "responses", "response", "counts first"],
)
def test_counts_of_other_apis_are_read(parts):
    plain = PlainUsage(strip=False)
    assert b"".join(map(plain.take, parts)) + plain.end() == b"".join(parts)
    assert plain.usage == Usage(7, 4, 9)


@pytest.mark.parametrize("delta", [{"delta": "x"}, {"delta": {"text": "x"}}, {"delta": {"partial_json": "x"}}])
def test_streams_of_other_apis_without_counts_count_their_texts(delta):
    plain = PlainUsage(strip=False)
    for _ in range(3):
        plain.take(named("delta", **delta))
    assert plain.usage == Usage(completion_tokens=3)


NAMES = st.sampled_from(["usage", "response", "message", "prompt_tokens", "completion_tokens", "output_tokens", "x"])
SAID = st.recursive(
    st.integers(0, 99) | st.sampled_from(['"usage":{"prompt_tokens":1}', "usage", "response", "\\\\", '\\"', "é\\n"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
"""Models and clients write it: calls have it as objects, too."""


@given(data=st.data(), cuts=st.lists(st.integers(0, 2000), max_size=6))
@pytest.mark.parametrize("around", [None, "response", "message"])
@pytest.mark.parametrize("stream", [True, False])
def test_no_text_call_or_echo_of_the_request_forges_the_counts(stream, around, data, cuts):
    others = data.draw(st.dictionaries(st.sampled_from(["content", "input", "tools", "metadata", "output"]), SAID))
    said = [*others.items(), ("usage", COUNTS)]
    fields = dict(data.draw(st.permutations(said)))
    if around is not None:
        fields = dict(data.draw(st.permutations([(around, fields), ("type", "usage"), ("delta", data.draw(SAID))])))
    separators = data.draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    sent = json.dumps(fields, separators=separators, ensure_ascii=data.draw(st.booleans())).encode()
    if stream:
        calls = event(delta={"input": data.draw(SAID)}, item={"usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        sent = calls + b"event: usage\ndata: " + sent + b"\n\n" + calls
    plain, got, begin = PlainUsage(strip=False), b"", 0
    for end in sorted({min(cut, len(sent)) for cut in cuts} | {len(sent)}):
        got += plain.take(sent[begin:end])
        begin = end
    assert got + plain.end() == sent
    assert plain.usage == Usage(7, 4, 9)


@pytest.mark.parametrize("strip", [True, False])
def test_counts_in_an_event_that_repeats_a_long_answer_are_read(strip):
    plain = PlainUsage(strip=strip)
    tools = [{"parameters": {"usage": {"prompt_tokens": 0, "completion_tokens": 0}}}]
    long = named("response.completed", response={"tools": tools, "output": ["x" * 500_000], "usage": RESPONSES})
    for begin in range(0, len(long), 50_000):
        plain.take(long[begin : begin + 50_000])
    plain.take(named("other", tools=tools))
    assert plain.usage == Usage(7, 4, 9)
    assert plain.kept_bytes == 0


def test_counts_without_an_end_are_not_kept():
    plain = PlainUsage(strip=False)
    plain.take(b'{"usage":{"x":"' + b"y" * 10**6)
    plain.take(b"y" * 10**6 + b'"},"usage":{"prompt_tokens":7}}')
    assert plain.usage == Usage(7, 0, 0)


@pytest.mark.parametrize("hostile", [b"{}" * 2**15, b"[" * 2**16, b'{"a":[' * 2**14])
def test_an_answer_of_nothing_but_brackets_is_given_up(hostile):
    """Half a megabyte of them took the process a third of a second."""
    reader = UsageReader()
    reader.feed(b'{"a":[')
    reader.feed(hostile)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_usage, "_TOKEN", None)  # a token more that is looked for fails
        reader.feed(hostile)
    reader.restart()
    reader.feed(b'{"usage":{"prompt_tokens":7}}')
    assert reader.usage == Usage(7), "the next event is read"


@pytest.mark.parametrize("part", [b'[["a",0],["b",1]],' * 4000, b'{"token":"a","bytes":[97],"top":[]},' * 2000])
def test_an_answer_of_many_small_objects_is_read_to_its_end(part):
    reader = UsageReader()
    for piece in (b'{"choices":[', part, b'0],"usage":{"prompt_tokens":7}}'):
        reader.feed(piece)
    assert reader.usage == Usage(7)


def test_an_answer_whose_counts_the_engine_told_is_not_read(monkeypatch):
    """Reading 16 MiB of embeddings at once stopped all streams of the process for 0.2 s."""
    monkeypatch.setattr(UsageReader, "feed", None)
    plain = PlainUsage(strip=False, told=True)
    assert plain.take(b'{"usage":{"prompt_tokens":7}}') == b'{"usage":{"prompt_tokens":7}}'
    assert (plain.end(), plain.usage) == (b"", None)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("strip", [False, True])
def test_a_stream_of_nothing_but_ends_of_events_passes_unread(strip, end, monkeypatch):
    plain = PlainUsage(strip=strip)
    assert plain.take(LAST[:9]) == (b"" if strip else LAST[:9])
    monkeypatch.setattr(PlainUsage, "_events", None)
    passed = plain.take(end * 4096) + plain.take(LAST) + plain.end()
    assert passed == (LAST[:9] if strip else b"") + end * 4096 + LAST

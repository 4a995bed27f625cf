"""Token counts that the gateway asks for, and their removal."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.relay.answers import json_usage
from inflight_gateway.relay.answers import usage as answers_usage
from inflight_gateway.relay.answers.answer import Usage
from inflight_gateway.relay.answers.json_usage import UsageReader
from inflight_gateway.relay.answers.kept import Kept
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


def counted(*, strip: bool, kept: Kept | None = None) -> PlainUsage:
    return PlainUsage(strip=strip, room=(kept or Kept()).answer(ServiceKey("ns", "a")))


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
    plain, got, begin = counted(strip=True), b"", 0
    for end in sorted({min(cut, len(sent)) for cut in cuts} | {len(sent)}):
        got += plain.take(sent[begin:end])
        begin = end
    assert got + plain.end() == shown
    assert plain.usage == Usage(7, 4, 9)


def test_without_counts_events_with_text_count_as_a_lower_bound():
    for strip in (True, False):
        plain = counted(strip=strip)
        for each in (
            event(choices=[{"delta": {"role": "assistant", "content": ""}}]),
            content("a"),
            content("b"),
            DONE,
        ):
            plain.take(each)
        assert plain.usage == Usage(completion_tokens=2)
    assert counted(strip=False).usage is None


def test_a_client_that_asked_gets_the_counts_once():
    plain = counted(strip=False)
    assert plain.take(content("a")) + plain.take(LAST) + plain.take(DONE) == content("a") + LAST + DONE
    assert plain.usage == Usage(7, 4, 9)


def test_an_event_too_long_to_be_kept_passes_in_parts():
    plain = counted(strip=True)
    long = content("x" * 500_000)
    parts = [long[begin : begin + 50_000] for begin in range(0, len(long), 50_000)]
    assert (
        b"".join(plain.take(part) for part in parts) + plain.take(LAST + content("b") + DONE)
        == long + content("b") + DONE
    )
    assert plain.kept_bytes == 0


def test_counts_of_a_whole_answer_are_those_at_its_end():
    plain = counted(strip=False)
    text = re.sub(r"\s", "", json.dumps(COUNTS))
    plain.take(b'{"choices":[{"text":"\\"prompt_tokens\\":99' + b"x" * 5000 + b'"}],"usage":' + text.encode() + b"}")
    assert plain.end() == b""
    assert plain.usage == Usage(7, 4, 9)


def test_absurd_counts_are_not_read():
    plain = counted(strip=False)
    plain.take(b'{"usage":{"completion_tokens":' + b"9" * 400 + b"}}")
    plain.end()
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
    plain = counted(strip=False)
    assert b"".join(map(plain.take, parts)) + plain.end() == b"".join(parts)
    assert plain.usage == Usage(7, 4, 9)


@pytest.mark.parametrize("delta", [{"delta": "x"}, {"delta": {"text": "x"}}, {"delta": {"partial_json": "x"}}])
def test_streams_of_other_apis_without_counts_count_their_texts(delta):
    plain = counted(strip=False)
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
@pytest.mark.parametrize("kind", ["stream", "long events", "whole", "its end"])
def test_no_text_call_or_echo_of_the_request_forges_the_counts(kind, around, data, cuts):
    others = data.draw(st.dictionaries(st.sampled_from(["content", "input", "tools", "metadata", "output"]), SAID))
    said = [*others.items(), ("usage", COUNTS)]
    fields = dict(data.draw(st.permutations(said)))
    if around is not None:
        fields = dict(data.draw(st.permutations([(around, fields), ("type", "usage"), ("delta", data.draw(SAID))])))
    separators = data.draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    sent = json.dumps(fields, separators=separators, ensure_ascii=data.draw(st.booleans())).encode()
    if kind in ("stream", "long events"):
        calls = event(delta={"input": data.draw(SAID)}, item={"usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        sent = calls + b"event: usage\ndata: " + sent + b"\n\n" + calls
    plain, got, begin = counted(strip=False), b"", 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers_usage, "_MAX_EVENT_BYTES", 20 if kind == "long events" else 2**16)
        patch.setattr(answers_usage, "_MAX_TEXT_BYTES", 20 if kind == "its end" else 2**16)
        patch.setattr(answers_usage, "_END_BYTES", data.draw(st.integers(1, 400)))
        for end in sorted({min(cut, len(sent)) for cut in cuts} | {len(sent)}):
            got += plain.take(sent[begin:end])
            begin = end
        assert got + plain.end() == sent
    assert plain.usage in ([None, Usage(7, 4, 9)] if kind == "its end" else [Usage(7, 4, 9)])


@pytest.mark.parametrize("strip", [True, False])
def test_counts_in_an_event_that_repeats_a_long_answer_are_read(strip):
    plain = counted(strip=strip)
    tools = [{"parameters": {"usage": {"prompt_tokens": 0, "completion_tokens": 0}}}]
    long = named("response.completed", response={"tools": tools, "output": ["x" * 500_000], "usage": RESPONSES})
    for begin in range(0, len(long), 50_000):
        plain.take(long[begin : begin + 50_000])
    plain.take(named("other", tools=tools))
    assert plain.usage == Usage(7, 4, 9)
    assert plain.kept_bytes == 0


@pytest.mark.parametrize("size", [9, 500_000])
def test_a_whole_answer_to_a_request_for_a_stream_is_counted(size):
    plain = counted(strip=True)
    whole = json.dumps({"choices": [{"text": "x" * size}], "usage": COUNTS}).encode() + b"\n"
    passed = [plain.take(whole[begin : begin + 50_000]) for begin in range(0, len(whole), 50_000)]
    assert b"".join(passed) + plain.end() == whole
    assert plain.usage == Usage(7, 4, 9)


@pytest.mark.parametrize("after", [b"", b',"user":null,"prompt_logprobs":[{}]', b' , "metadata" : {"usage":{"x":1}}\n'])
def test_counts_in_the_end_of_an_answer_too_long_to_be_kept_are_read(after, monkeypatch):
    monkeypatch.setattr(answers_usage, "_MAX_TEXT_BYTES", 2**18)
    plain, kept = counted(strip=False, kept=(kept := Kept())), kept
    tools = b'{"tools":[{"usage":{"prompt_tokens":0}},"' + b"x" * 2**19 + b'"]'
    for part in (
        tools,
        b',"data":[' + b"0.123456," * 2**15,
        b'0], "usage": ',
        json.dumps(COUNTS).encode(),
        after,
        b"}",
    ):
        assert plain.take(part) == part
        assert kept.size <= 2**18
    plain.end()
    assert (plain.usage, kept.size) == (Usage(7, 4, 9), 0)


@pytest.mark.parametrize("hidden", [b'"usage":{"prompt_tokens":7},', b'"tools":[{"a":0,"usage":{"prompt_tokens":0}}],'])
def test_an_answer_too_long_to_be_kept_without_counts_in_its_end_passes_and_has_none(hidden, monkeypatch):
    monkeypatch.setattr(answers_usage, "_MAX_TEXT_BYTES", 2**18)
    plain = counted(strip=False)
    for part in (
        b"{",
        hidden,
        b'"user":"',
        b"x" * 2**19,
        b'",',
        hidden * 9,
        b'"x":{"y":1,"usage":{"prompt_tokens":0}}}',
    ):
        assert plain.take(part) == part
    assert (plain.end(), plain.usage) == (b"", None) if b"tools" in hidden else (b"", Usage(7))


def test_answers_take_bounded_memory_to_be_counted_and_are_counted_where_it_is_full():
    kept = Kept(2**20)
    answers = [counted(strip=False, kept=kept) for _ in range(9)]
    for plain in answers:
        for part in (b'{"data":[', b"0.123456," * 2**14, b'0],"usage":{"prompt_tokens":7}}'):
            assert plain.take(part) == part
    assert kept.size < 2**19 + 9 * 2**16
    for plain in answers:
        plain.end()
        assert plain.usage == Usage(7)
        plain.release()
    assert kept.size == 0


def test_a_stream_whose_event_is_too_long_to_be_read_counts_its_texts(monkeypatch):
    monkeypatch.setattr(answers_usage, "_MAX_TEXT_BYTES", 2**18)
    plain = counted(strip=False)
    plain.take(named("delta", delta="x") * 3)
    long = named("response.completed", response={"output": ["x" * 2**19], "usage": RESPONSES})
    for begin in range(0, len(long), 2**16):
        plain.take(long[begin : begin + 2**16])
    assert plain.usage == Usage(completion_tokens=3)
    plain.take(named("response.completed", response={"usage": RESPONSES}))
    assert plain.usage == Usage(7, 4, 9), "the next event is read"


@pytest.mark.parametrize("hostile", [b"{}" * 2**15, b"[" * 2**16, b'{"a":[' * 2**14, b'{"a":[' + b',"usage"' * 2**12])
def test_answers_of_nothing_but_brackets_or_names_are_read_in_bounded_tries(hostile, monkeypatch):
    tries = []
    decoder = msgspec.json.Decoder(json_usage._Text)
    monkeypatch.setattr(
        json_usage, "_texts", SimpleNamespace(decode=lambda text: tries.append(1) or decoder.decode(text))
    )
    plain = counted(strip=False)
    assert plain.take(b'{"a":[' + hostile) == b'{"a":[' + hostile
    assert (plain.end(), plain.usage) == (b"", None)
    assert len(tries) <= 17


def test_an_answer_whose_counts_the_engine_told_is_not_read(monkeypatch):
    """Reading 16 MiB of embeddings at once stopped all streams of the process for 0.2 s."""
    monkeypatch.setattr(UsageReader, "read", None)
    plain = PlainUsage(strip=False, room=None)
    assert plain.take(b'{"usage":{"prompt_tokens":7}}') == b'{"usage":{"prompt_tokens":7}}'
    assert (plain.end(), plain.usage) == (b"", None)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("strip", [False, True])
def test_a_stream_of_nothing_but_ends_of_events_passes_unread(strip, end, monkeypatch):
    plain = counted(strip=strip)
    assert plain.take(LAST[:9]) == (b"" if strip else LAST[:9])
    monkeypatch.setattr(PlainUsage, "_events", None)
    passed = plain.take(end * 4096) + plain.take(LAST) + plain.end()
    assert passed == (LAST[:9] if strip else b"") + end * 4096 + LAST

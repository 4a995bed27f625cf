"""Engine and gateway read bodies alike: the gateway counts the tokens of what an engine accepts."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from inflight_engine.server.bodies.chat_schema import ChatCompletionRequest
from inflight_engine.server.bodies.json_size import TooManyValuesError
from inflight_engine.server.bodies.schema import CompletionRequest, GenerateRequest
from inflight_engine.server.http import strict_json
from inflight_engine.server.http.strict_json import decoded
from inflight_gateway.request.body import parse
from tests.engine.server.fake_engine import until

CHAT = b'{"messages": [{"role": "user", "content": "hi"}]}'

TEXT = st.text(st.sampled_from('a"\\\x00é\U0001f600'), max_size=3) | st.sampled_from(["a", "b", "\ud800"])
NUMBERS = st.integers(1, 9) | st.sampled_from([0, 1, 8, 128, 129, 2**31, 2**64, 10**40, -1, 1.5])
VALUES = {
    "messages": st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXT}), max_size=2
    ),
    "prompt": TEXT | st.lists(TEXT, max_size=3) | st.lists(st.integers(0, 3) | st.lists(st.integers(0, 3)), max_size=3),
    "model": TEXT | st.just("m" * 300),
    "stream": st.booleans() | NUMBERS,
    "n": NUMBERS,
    "max_tokens": NUMBERS,
    "max_completion_tokens": NUMBERS,
    "class": TEXT,
    "user": TEXT,
    "temperature": NUMBERS | st.sampled_from([float("nan"), float("inf")]),
}


@st.composite
def written(draw):
    """The JSON-like text of an object, with fields that come twice, are escaped or null, and bytes that spoil it."""
    names = [draw(st.sampled_from(["messages", "prompt"])), *draw(st.lists(st.sampled_from([*VALUES]), max_size=5))]
    fields = []
    for name in names:
        value = draw(VALUES[name] | st.none() if draw(st.integers(0, 9)) == 0 else VALUES[name])
        key = "".join(f"\\u{ord(each):04x}" if draw(st.integers(0, 99)) == 0 else each for each in name)
        fields.append(f'"{key}":{json.dumps(value, ensure_ascii=draw(st.booleans()))}')
    text = draw(st.sampled_from(["", " \n\t"])) + "{" + ", ".join(fields) + "}"
    encoding = draw(st.sampled_from(["utf-8"] * 8 + ["utf-8-sig", "utf-16", "utf-32"]))
    body = text.encode(encoding, "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(body)))
        body = body[:at] + draw(st.binary(max_size=2)) + body[at:]
    return body


@given(written(), st.sampled_from([ChatCompletionRequest, CompletionRequest, GenerateRequest]))
def test_the_gateway_reads_what_an_engine_accepts_and_as_it_does(body, endpoint):
    try:
        accepted = endpoint.model_validate(decoded(body))
    except (json.JSONDecodeError, ValidationError):
        return
    read = parse(body)
    assert read is not None
    assert read.model == (None if getattr(accepted, "model", None) is None else accepted.model[:256])
    assert read.stream == bool(accepted.stream)
    asked = accepted.asked_max_tokens()
    assert read.max_tokens == (asked if asked is None or asked < 2**31 else None)
    assert read.choices == (accepted.n or 1) * max(1, len(accepted.prompts()))


@pytest.mark.parametrize(
    "body",
    [
        *(CHAT.decode().encode(encoding) for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-32")),
        *(CHAT[:-1] + b', "temperature": ' + number + b"}" for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999")),
        *(CHAT.replace(b"hi", text) for text in (b"\\ud800", b"\xff", b"\xed\xa0\x80")),
        b"[" * 100_000,
        b"",
    ],
)
async def test_what_the_gateway_cannot_read_is_400_at_an_engine(make_fake, body):
    fake = await make_fake()
    answer = await fake.http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert not fake.engine.requests
    assert ("surrogate" in answer.text) == (b"\\ud800" in body)
    read = parse(body)
    assert read is None or b"1e999" in body  # which only engines look at


async def test_of_two_fields_of_a_name_both_take_the_last_one(make_fake):
    body = b'{"max_tokens": 1, "prompt": "a", "n": 2, "m\\u0061x_tokens": 7, "n": 3}'
    fake = await make_fake()
    call = asyncio.create_task(
        fake.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    )
    await until(lambda: fake.engine.requests)
    assert [one.sampling.max_tokens for one in fake.engine.requests.values()] == [7, 7, 7]
    call.cancel()
    assert (parse(body).max_tokens, parse(body).choices) == (7, 3)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.sampled_from([None, 1]), st.integers(0, 30), st.integers(0, 5))
def test_a_long_body_is_decoded_part_by_part_as_a_short_one(value, indent, stretch, levels):
    body = b" \n" + json.dumps(value, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json, "LONG_STRETCH", stretch)
        patch.setattr(strict_json, "_LEVELS", levels)
        assert decoded(body) == value
        for wrong in (body[:-1] + b"\xff", body + b"]", b"[" + body, b'{"a":' + body + b',"b":"\\ud800"}'):
            with pytest.raises(json.JSONDecodeError):
                decoded(wrong)


def test_a_string_that_is_too_long_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(strict_json, "LONG_STRETCH", 100)
    monkeypatch.setattr(strict_json, "MAX_STRING", 200)
    assert decoded(b'{"prompt":["%s"]}' % (b"a" * 198)) == {"prompt": ["a" * 198]}
    for body in (b'{"prompt":["%s"]}', b'{"a":{"b":"%s"}}', b'"%s"'):
        with pytest.raises(TooManyValuesError, match="has a string of more than 200 bytes"):
            decoded(body % (b"\\u0041" * 40))


async def test_a_body_with_such_a_string_is_a_400(make_fake, monkeypatch):
    monkeypatch.setattr(strict_json, "LONG_STRETCH", strict_json.LONG_BODY)
    monkeypatch.setattr(strict_json, "MAX_STRING", strict_json.LONG_BODY)
    answer = await (await make_fake()).post("/v1/completions", prompt="a" * strict_json.LONG_BODY)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == f"the body has a string of more than {strict_json.LONG_BODY} bytes"

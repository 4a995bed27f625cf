"""What is read of bodies, and prefixes of prompts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.ext_proc.body import Body, parse
from inflight_gateway.ext_proc.prefix import BLOCK_TOKENS, BYTES_PER_TOKEN, text_prefix, token_prefix

BLOCK = BLOCK_TOKENS * BYTES_PER_TOKEN

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    "model messages prompt tools stream max_tokens max_completion_tokens class priority cache_salt"
    " inflight_continuation".split()
)


def chat(*texts, **fields):
    messages = [{"role": "user", "content": text} for text in texts]
    return parse(json.dumps({"model": "m", "messages": messages, **fields}).encode())


@given(st.binary())
def test_any_bytes_are_taken(data):
    parse(data).prefix("tenant")


@given(st.dictionaries(FIELDS, ANYTHING))
def test_fields_of_any_type_are_taken(fields):
    body = parse(json.dumps(fields).encode())
    body.prefix("tenant")
    assert body.prompt_tokens >= 0


@given(st.lists(ANYTHING))
def test_messages_of_any_shape_are_taken(messages):
    parse(json.dumps({"messages": messages}).encode()).prefix("")


def test_fields_are_read():
    body = chat("hello", stream=True, max_tokens=5, priority=-3, cache_salt="s", **{"class": "batch"})
    assert (body.model, body.stream, body.max_tokens, body.service_class) == ("m", True, 5, "batch")
    assert (body.priority, body.salt) == (-3, "s")


def test_a_body_that_is_no_object_says_nothing():
    assert parse(b"[1, 2]") == parse(b"nonsense") == parse(b"[" * 100_000) == Body()


@pytest.mark.parametrize(
    "field", ['"messages":[{"role":%s}]', '"messages":[{"tool_calls":%s}]', '"tools":%s,"messages":[1]']
)
def test_bodies_of_any_depth_are_taken(field):
    for depth in (300, 400, 480, 500, 600, 800, 900, 950, 980, 2000):
        parse(b'{"model":"m",' + (field % ("[" * depth + "]" * depth)).encode() + b"}")


def test_token_ids_are_counted_and_text_is_estimated():
    assert parse(b'{"prompt": [1, 2, 3]}').prompt_tokens == 3
    assert parse(b'{"prompt": [[1, 2], [3]]}').prompt_tokens == 3
    assert parse(json.dumps({"prompt": "x" * 400}).encode()).prompt_tokens == 100


def test_a_continuation_has_its_tokens_prefilled():
    more = {"choices": [{"token_ids": [1, 2, 3], "seed": None}, {"token_ids": [4]}]}
    assert chat("x" * 400, inflight_continuation=more).prompt_tokens == chat("x" * 400).prompt_tokens + 4


@given(st.text(), st.text(), st.text())
def test_prompts_with_a_common_beginning_share_its_whole_blocks(common, first, second):
    one, other = text_prefix(common + first, "t", ""), text_prefix(common + second, "t", "")
    shared = len(common.encode()) // BLOCK
    assert one[:shared] == other[:shared]


def test_prompts_share_nothing_behind_their_first_difference():
    one = text_prefix("a" * BLOCK + "b" * BLOCK + "c" * BLOCK, "t", "")
    other = text_prefix("a" * BLOCK + "x" * BLOCK + "c" * BLOCK, "t", "")
    assert [left == right for left, right in zip(one, other, strict=True)] == [True, False, False]


def test_tenants_and_salts_share_nothing():
    text = "a" * BLOCK
    prefixes = {text_prefix(text, tenant, salt) for tenant in ("", "t", "u") for salt in ("", "s")}
    assert len(prefixes) == 6
    assert token_prefix([97] * BLOCK_TOKENS, "", "") not in prefixes


def test_a_conversation_goes_on_in_its_own_prefix():
    begin = chat("x" * 3000)
    longer = chat("x" * 3000, "more", "y" * 3000)
    assert longer.prefix("")[: len(begin.prefix(""))] == begin.prefix("")


def test_an_image_part_or_none_is_no_text():
    content = [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "x"}}, None]
    body = parse(json.dumps({"messages": [{"role": "user", "content": content}, {"role": "user"}]}).encode())
    assert "hello" in body.text

"""Fields that are read of bodies, and prefixes of prompts."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.link.wire import Ask, Frames, frame, from_relay
from inflight_gateway.request.body import (
    MAX_DECODED_BYTES,
    MAX_SCORES,
    NAME_CHARACTERS,
    NO_FIELDS,
    Body,
    parse,
)
from inflight_gateway.request.paths import Api
from inflight_gateway.request.prefix import (
    BLOCK_TOKENS,
    BYTES_PER_TOKEN,
    MAX_BLOCKS,
    of_tenant,
    text_blocks,
    token_blocks,
)

BLOCK = BLOCK_TOKENS * BYTES_PER_TOKEN

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(2**80), 2**80) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    "model messages prompt tools stream max_tokens max_completion_tokens max_output_tokens n class service_tier"
    " priority cache_salt prompt_cache_key instructions system input query queries documents text_1 text_2"
    " inflight_continuation prompt_logprobs echo logprobs".split()
)


SERVICE = ServiceKey("team", "chat")


def sent(body):
    """Returns the fields as the picker gets them."""
    ((content,),) = (Frames().feed(frame([Ask("r", 1, SERVICE, body=body)])),)
    return from_relay.decode(content)[0].body


def chat(*texts, **fields):
    messages = [{"role": "user", "content": text} for text in texts]
    return parse(json.dumps({"model": "m", "messages": messages, **fields}).encode())


@given(st.binary(), st.sampled_from(Api))
def test_any_bytes_are_taken(data, api):
    parse(data, api)


@given(st.dictionaries(FIELDS, ANYTHING), st.sampled_from(Api))
def test_fields_of_any_type_are_taken_and_reach_the_picker_unchanged(fields, api):
    body = parse(json.dumps(fields).encode(), api) or NO_FIELDS
    assert body.prompt_tokens >= 0
    assert sent(body) == body
    assert len(body.prefix("tenant")) == len(body.blocks) // 8


@example("begin", "abc\u00e9", 8, "salt")  # 27 MiB of UTF-8: relays take bodies of up to 32 MiB
@given(st.text(max_size=600), st.text(min_size=1, max_size=5), st.integers(0, 6), st.text(max_size=3))
def test_prompts_of_any_length_reach_the_picker_unchanged(begin, part, times, salt):
    for prompt in (begin + part * 7**times, [*begin.encode()] * 7 ** (times % 4)):
        body = parse(json.dumps({"prompt": prompt, "cache_salt": salt}).encode())
        assert sent(body) == body


def test_the_message_has_a_bound():
    body = parse(json.dumps({"prompt": "x" * 2**20, "model": "\U0001f600" * 10**5, "class": "\u4e00" * 10**5}).encode())
    assert len(body.blocks) == 8 * MAX_BLOCKS
    assert len(body.model) == len(body.service_class) == NAME_CHARACTERS
    assert len(frame([Ask("r", 1, SERVICE, body=body)])) <= 19 * 2**10


@given(st.lists(ANYTHING))
def test_messages_of_any_shape_are_taken(messages):
    parse(json.dumps({"messages": messages}).encode())


def test_fields_are_read():
    body = chat("hello", stream=True, max_tokens=5, priority=-3, cache_salt="s", **{"class": "batch"})
    assert (body.model, body.stream, body.max_tokens, body.service_class) == ("m", True, 5, "batch")
    assert (body.priority, body.continues) == (-3, False)


@pytest.mark.parametrize(
    ("api", "fields", "scores"),
    [
        *((Api.OPENAI, {"prompt_logprobs": number}, number + 1) for number in (0, 20)),
        *((Api.OPENAI, {"prompt_logprobs": number}, 0) for number in (None, True, "5", 2**31)),
        (Api.OPENAI, {"prompt_logprobs": -1}, MAX_SCORES),
        *((Api.OPENAI, {"echo": each, "logprobs": 5}, 6) for each in (1, "true", "yes")),
        *((Api.OPENAI, {"echo": each, "logprobs": 5}, 0) for each in (False, None)),
        (Api.OPENAI, {"prompt_logprobs": 2**31 - 1}, MAX_SCORES),
        (Api.OPENAI, {"echo": True, "logprobs": 5, "prompt_logprobs": 2}, 6),
        (Api.OPENAI, {"echo": False, "logprobs": 5, "top_logprobs": 20}, 0),
        (Api.OPENAI, {"echo": True, "logprobs": True}, 0),
        (Api.RESPONSES, {"prompt_logprobs": 5}, 0),
        (Api.POOLING, {"input": "x"}, 0),
    ],
)
def test_log_probabilities_for_each_token_are_counted(api, fields, scores):
    assert parse(json.dumps(fields).encode(), api).scores == scores


@pytest.mark.parametrize("number", [-1, 2**31, 10**400, -(10**400), 1.0, "1", True, None])
def test_numbers_that_engines_refuse_are_absent(number):
    assert chat("hello", max_tokens=number).max_tokens is None
    priority = chat("hello", priority=number).priority
    assert priority is None or priority == number == -1


def test_a_body_that_is_no_object_has_no_fields():
    assert parse(b"[1, 2]") is parse(b"nonsense") is parse(b"[" * 100_000) is parse(b'{"model": "\xff"}') is None


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


@pytest.mark.parametrize("n", [1, 8, 128])
@pytest.mark.parametrize("prompt", ["a", ["a"], ["a", "b"], [1, 2, 3], [[1, 2, 3]], [[1], [2], [3]]])
def test_choices_are_n_of_each_prompt(n, prompt):
    prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    assert parse(json.dumps({"prompt": prompt, "n": n}).encode()).choices == n * prompts
    assert chat("hello", n=n).choices == n


@pytest.mark.parametrize("n", [0, -1, 2.0, "8", True, None, 10**40])
def test_choices_of_requests_that_engines_refuse_are_bounded(n):
    assert chat("hello", n=n).choices == 1
    assert chat("hello", n=2**30).choices == 128


@given(st.lists(st.text(alphabet='a\\"[]', max_size=9), min_size=1), st.booleans())
def test_prompts_of_a_long_list_are_counted_as_engines_read_them(texts, escaped):
    texts = [*texts, "x" * MAX_DECODED_BYTES]
    assert parse(json.dumps({"prompt": texts}, ensure_ascii=escaped).encode()).choices == len(texts)
    several = [[1] * (MAX_DECODED_BYTES // 3), *([2] for _ in texts)]
    assert parse(json.dumps({"prompt": several}).encode()).choices == len(several)


def test_a_continuation_has_its_tokens_prefilled_and_the_same_prefix():
    body = chat("x" * 400)
    assert body.continued(4) == Body("m", prompt_tokens=body.prompt_tokens + 4, blocks=body.blocks)


@pytest.mark.parametrize("value", [None, {}, {"choices": []}])
def test_a_client_that_continues_itself_is_seen(value):
    assert chat("hello", inflight_continuation=value).continues
    assert parse(b'{"inflight\\u005fcontinuation": null}').continues
    assert not chat("inflight_continuation").continues


@given(st.text(), st.text(), st.text())
def test_prompts_with_a_common_beginning_share_its_whole_blocks(common, first, second):
    one, other = (of_tenant(text_blocks(common + each, ""), "t") for each in (first, second))
    shared = len(common.encode()) // BLOCK
    assert one[:shared] == other[:shared]


def test_prompts_share_nothing_behind_their_first_difference():
    one = of_tenant(text_blocks("a" * BLOCK + "b" * BLOCK + "c" * BLOCK, ""), "t")
    other = of_tenant(text_blocks("a" * BLOCK + "x" * BLOCK + "c" * BLOCK, ""), "t")
    assert [left == right for left, right in zip(one, other, strict=True)] == [True, False, False]


@given(st.sets(st.tuples(st.text(), st.text()), min_size=2, max_size=5))
def test_tenants_and_salts_share_no_block(pairs):
    text, tokens = "a" * (3 * BLOCK), [97] * (3 * BLOCK_TOKENS)
    hashes = [
        each
        for tenant, salt in pairs
        for blocks in (text_blocks(text, salt), token_blocks(tokens, salt))
        for each in of_tenant(blocks, tenant)
    ]
    assert len(set(hashes)) == len(hashes) == 6 * len(pairs)


@given(st.lists(st.sampled_from("ab"), max_size=4), st.lists(st.sampled_from("ab"), max_size=4), st.text())
def test_hashes_of_one_tenant_are_equal_where_all_text_before_is(first, second, tenant):
    one, other = (of_tenant(text_blocks("".join(c * BLOCK for c in each), ""), tenant) for each in (first, second))
    for length in range(1, min(len(first), len(second)) + 1):
        assert (one[length - 1] == other[length - 1]) is (first[:length] == second[:length])


def test_a_conversation_goes_on_in_its_own_prefix():
    begin = chat("x" * 3000)
    longer = chat("x" * 3000, "more", "y" * 3000)
    assert longer.prefix("")[: len(begin.prefix(""))] == begin.prefix("")


def test_an_image_part_or_none_is_no_text():
    content = [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "x"}}, None]
    body = parse(json.dumps({"messages": [{"role": "user", "content": content}, {"role": "user"}]}).encode())
    assert body.prompt_tokens == chat("hello").prompt_tokens + 2


def read(api, **fields):
    return parse(json.dumps(fields).encode(), api)


LONG = "x" * MAX_DECODED_BYTES
TEXT = "x" * 400
CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": TEXT}
USE = {"type": "tool_use", "id": "1", "name": "f", "input": {"text": TEXT}}


@pytest.mark.parametrize(
    ("api", "fields", "tokens"),
    [
        (Api.RESPONSES, {"input": TEXT}, 100),
        (Api.RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": TEXT}]}]}, 100),
        (Api.RESPONSES, {"input": TEXT, "instructions": TEXT, "tools": [{"name": TEXT}]}, 300),
        (Api.RESPONSES, {"input": [CALL, {"type": "function_call_output", "call_id": "1", "output": TEXT}]}, 200),
        (Api.MESSAGES, {"messages": [{"role": "user", "content": TEXT}], "system": TEXT}, 200),
        (Api.MESSAGES, {"messages": [{"role": "assistant", "content": [USE]}], "system": [{"text": TEXT}]}, 200),
        (Api.POOLING, {"input": [TEXT, TEXT, TEXT]}, 300),
        (Api.POOLING, {"input": [[1] * 100, [2] * 150]}, 250),
        (Api.POOLING, {"query": TEXT, "documents": [TEXT, TEXT]}, 300),
        (Api.POOLING, {"text_1": TEXT, "text_2": TEXT}, 200),
    ],
)
def test_each_apis_prompt_is_counted(api, fields, tokens):
    assert read(api, **fields).prompt_tokens == pytest.approx(tokens, rel=0.25)
    long = {name: json.loads(json.dumps(value).replace(TEXT, LONG)) for name, value in fields.items()}
    if "[1" not in json.dumps(fields):
        assert read(api, **long).prompt_tokens == pytest.approx(tokens * len(LONG) / 400, rel=0.25)


@pytest.mark.parametrize(
    ("api", "fields", "read_of_them"),
    [
        (Api.RESPONSES, {"max_output_tokens": 7, "max_tokens": 9, "n": 5}, (7, 1)),
        (Api.MESSAGES, {"max_tokens": 9, "max_output_tokens": 7, "n": 5}, (9, 1)),
        (Api.OPENAI, {"max_tokens": 9, "max_output_tokens": 7, "n": 5}, (9, 5)),
        (Api.POOLING, {"input": ["a", "b"], "max_tokens": 9, "n": 5}, (0, 2)),
        (Api.POOLING, {"query": "a", "documents": ["a", "b", "c"]}, (0, 4)),
        (Api.POOLING, {"queries": ["a", "b"], "documents": ["a", "b"]}, (0, 4)),
        (Api.POOLING, {"data_1": LONG, "data_2": ["a", "b"]}, (0, 3)),
        (Api.POOLING, {"input": "a"}, (0, 1)),
    ],
)
def test_each_apis_lengths_and_choices_are_read(api, fields, read_of_them):
    body = read(api, **fields)
    assert (body.max_tokens, body.choices) == read_of_them


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"service_tier": "batch"}, "batch"),
        ({"service_tier": "batch", "class": "chat"}, "chat"),
        *(({"service_tier": tier}, None) for tier in ("auto", "default", "standard_only", None, 5)),
    ],
)
def test_a_service_tier_is_a_class(fields, name):
    assert chat("hello", **fields).service_class == name


def test_prompts_with_another_cache_key_share_no_blocks():
    keys = [{}, {"prompt_cache_key": "a"}, {"prompt_cache_key": "b"}, {"cache_salt": "a", "prompt_cache_key": "b"}]
    blocks = [chat("x" * 3 * BLOCK, **fields).blocks[:8] for fields in keys]
    assert len({*blocks}) == len(keys)
    assert chat("x" * 3 * BLOCK, prompt_cache_key="a", user="u").blocks[:8] == blocks[1]


@pytest.mark.parametrize(
    ("api", "more"), [(Api.RESPONSES, {"instructions": "s" * 3 * BLOCK}), (Api.MESSAGES, {"system": "s" * 3 * BLOCK})]
)
def test_conversations_of_each_api_go_on_in_their_own_prefix(api, more):
    field = "input" if api is Api.RESPONSES else "messages"
    turns = [{"role": "user", "content": "a" * 1000}, {"role": "assistant", "content": "b" * 1000}]
    begin, longer = read(api, **more, **{field: turns[:1]}), read(api, **more, **{field: turns})
    assert longer.prefix("")[: len(begin.prefix(""))] == begin.prefix("")
    assert len(longer.blocks) > len(begin.blocks)


KNOWN_FIELDS = (
    *("model", "messages", "prompt", "tools", "stream", "max_tokens", "max_completion_tokens", "class", "priority"),
    *("cache_salt", "inflight_continuation", "another"),
)
MORE_FIELDS = "instructions system input query documents items text_1 data_2 service_tier prompt_cache_key".split()


@pytest.mark.parametrize("value", ["{}", "1", "[]"])
@pytest.mark.parametrize(
    ("field", "beside"),
    [
        *((field, "") for field in KNOWN_FIELDS),
        *(("prompt", '"messages":null,'), ("prompt", '"messages":[],'), ("prompt", '"messages":[{}],')),
        *(("tools", '"messages":[{}],'), ("tools", '"prompt":"x",'), ("messages", '"prompt":"x",')),
    ],
)
def test_no_object_is_made_of_each_value_in_a_large_body(field, beside, value):
    body = f'{{{beside}"{field}":[{",".join([value] * (2**19 // len(value)))}]}}'.encode()
    assert_parsed_in_its_own_size(body, Api.OPENAI)


@pytest.mark.parametrize("api", [Api.RESPONSES, Api.MESSAGES, Api.POOLING])
def test_no_object_is_made_of_each_value_in_a_large_body_of_other_apis(api):
    for field in (*MORE_FIELDS, "messages"):
        assert_parsed_in_its_own_size(f'{{"{field}":[{",".join(["[]"] * 2**18)}]}}'.encode(), api)


def assert_parsed_in_its_own_size(body, api):
    tracemalloc.start()
    try:
        parse(body, api)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(body)


def test_a_long_conversation_goes_on_in_its_own_prefix():
    tools = [{"type": "function", "function": {"name": "f"}}]
    begin = chat(LONG, "a" * 1000, tools=tools)
    longer = chat(LONG, "a" * 1000, "b" * 3000, tools=tools)
    shared = (MAX_DECODED_BYTES + 1000) // BLOCK
    assert longer.prefix("")[:shared] == begin.prefix("")[:shared]
    assert longer.prefix("")[-1] not in begin.prefix("")
    assert not {*begin.prefix("")} & {*chat(LONG, "a" * 1000).prefix("")}
    assert not {*begin.prefix("")} & {*chat(LONG, "a" * 1000, tools=tools, cache_salt="s").prefix("")}


def test_tools_and_earlier_calls_are_part_of_the_prompts_tokens():
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * 4000}}]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"text": "x" * 4000})}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    for body in (chat("hello", tools=tools), parse(json.dumps({"messages": messages}).encode())):
        assert body.prompt_tokens == pytest.approx(4000 / BYTES_PER_TOKEN, rel=0.1)


def test_the_tokens_of_a_long_prompt_are_about_those_of_its_text():
    assert chat(LONG, "hello").prompt_tokens == pytest.approx(MAX_DECODED_BYTES / BYTES_PER_TOKEN, rel=0.01)
    text = parse(json.dumps({"prompt": [LONG, "hello"], "messages": None}).encode())
    assert text.prompt_tokens == pytest.approx(MAX_DECODED_BYTES / BYTES_PER_TOKEN, rel=0.01)


@pytest.mark.parametrize("separator", [",", ", "])
@pytest.mark.parametrize("several", [False, True])
def test_a_long_list_of_token_ids_has_about_its_tokens_and_blocks(several, separator):
    ids = [number * 7919 % 128_000 for number in range(100_000)]

    def of(ids):
        return parse(json.dumps({"prompt": [ids] if several else ids}, separators=(separator, ":")).encode())

    body, other = of(ids), of([*ids[:50_000], 1, *ids[50_000:]])
    shared = sum(one == two for one, two in zip(body.prefix(""), other.prefix(""), strict=False))
    assert body.prompt_tokens == pytest.approx(100_000, rel=0.2)
    assert shared * BLOCK_TOKENS == pytest.approx(50_000, rel=0.2)


def test_text_up_to_the_bound_is_hashed_as_before():
    """Replicas hold its blocks under these hashes, whatever the client's JSON looks like."""
    text = "\u4e00" * (MAX_DECODED_BYTES // 3 - 100)
    assert parse(json.dumps({"prompt": text}, ensure_ascii=False).encode()).blocks == text_blocks(text, "")
    spaced = b'{"messages" : [ ], "tools": {}, "prompt"\n: "x\\u0078" }'
    assert parse(spaced).prompt_tokens == 1
    assert parse(b'{"prompt": "' + b"\\u0078" * 300 + b'"}').blocks == text_blocks("x" * 300, "")


@pytest.mark.parametrize("field", ["messages", "prompt", "tools"])
def test_malformed_text_raises_nothing(field):
    for length in (10, MAX_DECODED_BYTES):
        body = b'{"model": "m", "messages": ["%b"], "%b": ["' % (b"x" * 300, field.encode()) + b"\xff" * length + b'"]}'
        parsed = parse(body)
        assert parsed is None or parsed.model == "m"

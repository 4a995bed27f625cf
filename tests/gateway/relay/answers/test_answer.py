from __future__ import annotations

import json
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.relay.answers.answer import MAX_TOKENS, Answer, Ended, Ending, Usage
from inflight_gateway.types import PromptBlocks

NEWS = st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 200_000), min_size=1, max_size=5)), max_size=20)


def told(answer: Answer, body: bytes) -> dict:
    return json.loads(answer.continued(body, 17))["inflight_continuation"]


@given(news=NEWS, seeds=st.dictionaries(st.integers(0, 3), st.integers(0, 2**63 - 1)), ended=st.sets(st.integers(0, 3)))
def test_a_continuation_says_what_the_notes_said(news, seeds, ended):
    answer, tokens = Answer(4), [[], [], [], []]
    for index, seed in seeds.items():
        answer.take([b"s %d %d" % (index, seed)])
    for index, ids in news:
        answer.take([b"t %d %s" % (index, ",".join(map(str, ids)).encode())])
        tokens[index] += ids
    for index in ended:
        answer.take([b"f %d stop" % index])
    body = json.dumps({"n": 4, "prompt": 'with "braces}" }'}).encode() + b" \n"
    field = told(answer, body)
    assert field == {
        "created": 17,
        "choices": [
            {
                "token_ids": tokens[index],
                "seed": seeds.get(index),
                "finish_reason": "stop" if index in ended else None,
            }
            for index in range(4)
        ],
    }
    assert answer.has_tokens == bool(news or ended)
    assert answer.num_tokens == sum(map(len, tokens))
    assert answer.all_finished == (len(ended) == 4)


@pytest.mark.parametrize("note", [b"t 2 5", b"s 2 5", b"f 2 stop", b"t 4294967296 5"])
def test_an_engine_may_report_no_more_choices_than_the_request_asks_for(note):
    answer = Answer(2)
    answer.take([b"t 1 5", b"s 1 5", b"f 1 stop"])
    with pytest.raises(ValueError, match="does not ask for"):
        answer.take([note])


@pytest.mark.parametrize(("asked", "most"), [(5, 5), (None, MAX_TOKENS), (2**40, MAX_TOKENS)])
def test_an_engine_may_report_no_more_tokens_than_the_request_allows(asked, most):
    answer = Answer(2, asked)
    answer.take([b"t 0 " + b",".join([b"1"] * most), b"t 1 7"])
    assert (answer.num_tokens, answer.size) == (most + 1, 2 * most + 2)
    with pytest.raises(ValueError, match="more tokens"):
        answer.take([b"t 0 1"])


def test_usage_and_ends_are_understood():
    answer = Answer()
    usage = b'u {"prompt_tokens":3,"cached_tokens":2,"completion_tokens":9,"later":1}'
    assert answer.take([usage, b"w 200"]) == Ended(Ending.WHOLE, 200)
    assert answer.usage == Usage(3, 2, 9)
    assert answer.take([b"e 503 retry"]) == Ended(Ending.RETRY, 503)
    assert answer.take([b"e 400 final"]) == Ended(Ending.FINAL, 400)
    assert answer.take([b"h", b"x of a later version"]) is None


@pytest.mark.parametrize(
    "note",
    [
        b"t 0 ",
        b"t x 1",
        b"t -1 5",
        b"s 0 x",
        b"u {",
        b"w x",
        b"e 503 maybe",
        b"e x final",
        b"w 99",
        b"w 600",
        b"e 0 final",
        b'u {"completion_tokens":-5}',
        b'u {"completion_tokens":1e300}',
        b"s 0 " + b"9" * 21,
        b"f 0 " + b"x" * 65,
        b"b 16 32",
        b"b 16 32 !!!!",
        b"b 16 32 AAAA",
        b"b 16 15 AAAAAAAAAAA=",
        b"b 0 32 AAAAAAAAAAA=",
        b"b -1 32 AAAAAAAAAAA=",
        b"b 1 99999999999 AAAAAAAAAAA=",
        b"b 1 32 ",
        b"b 1 65536 " + b64encode(bytes(8 * 4097)),
    ],
)
def test_notes_against_the_protocol_are_errors(note):
    with pytest.raises(ValueError):  # noqa: PT011
        Answer().take([note])


def test_the_blocks_of_a_prompt_are_understood():
    answer = Answer()
    names = bytes(range(16))
    answer.take([b"b 16 47 " + b64encode(names), b"t 0 5"])
    assert answer.blocks == PromptBlocks(16, 47, names)


def test_token_ids_that_are_no_numbers_do_not_reach_an_engine():
    answer = Answer()
    answer.take([b't 0 1],"x":[2'])
    with pytest.raises(ValueError, match="not a number"):
        answer.continued(b"{}", 1)

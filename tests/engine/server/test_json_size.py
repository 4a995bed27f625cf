"""Bodies with too many values are refused before any is made."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inflight_engine.server.bodies import json_size
from inflight_engine.server.bodies.json_size import MAX_COMMAS, MAX_ITEMS, TooManyValuesError, check_size
from inflight_engine.server.http import strict_json

TEXT = st.text(st.one_of(st.sampled_from('"\\,[]{}a'), st.characters(codec="utf-8")), max_size=12)
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=20,
)


def counted(value):
    """Strings, objects and arrays, and commas."""
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    inner = [counted(each) for each in parts]
    items = isinstance(value, dict | list | str) + sum(each[0] for each in inner)
    return items, max(0, len(value) - 1 if parts else 0) + sum(each[1] for each in inner)


@given(value=VALUES, piece=st.sampled_from([1, 2, 3, 7, 64]), ascii_only=st.booleans())
@example(value=["\\", '"\\\\', '\\"[', {"a,": "\\\\"}], piece=1, ascii_only=True)
def test_values_are_counted_whatever_strings_hold_and_wherever_pieces_end(value, piece, ascii_only):
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_size, "_PIECE", piece)
        assert json_size.count(body) == counted(value)


def listed(item, count):
    return b"[" + b",".join([item] * count) + b"]"


@pytest.mark.parametrize("item", [b"{}", b"[]", b'""', b'{"a":1}'], ids=["objects", "arrays", "strings", "fields"])
def test_a_body_of_many_items_is_refused_and_one_of_fewer_is_not(item):
    size = item.count(b"{") + item.count(b"[") + item.count(b'"') // 2
    check_size(listed(item, (MAX_ITEMS - 1) // size))
    with pytest.raises(TooManyValuesError, match="strings, objects and arrays"):
        check_size(listed(item, MAX_ITEMS // size + 1))


def test_a_million_token_ids_pass_and_more_do_not():
    check_size(listed(b"1", MAX_COMMAS + 1))
    with pytest.raises(TooManyValuesError, match="values"):
        check_size(listed(b"1", MAX_COMMAS + 2))


@pytest.mark.parametrize("text", ['\\"', "{", ",", "[", "\\\\"])
def test_a_long_text_may_have_any_characters(text):
    check_size(b'{"prompt":"' + text.encode() * 2**20 + b'"}')


async def test_such_a_body_is_a_400_and_is_not_decoded(make_fake, monkeypatch):
    fake = await make_fake()
    monkeypatch.setattr(strict_json, "decoded", None)
    for path, code in (("/v1/chat/completions", "too_many_values"), ("/v1/messages", None)):
        content = b'{"messages":' + listed(b"{}", MAX_ITEMS) + b"}"
        answer = await fake.http.post(path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["message"] == f"the body has more than {MAX_ITEMS} strings, objects and arrays"
        assert error.get("code") == code or code is None

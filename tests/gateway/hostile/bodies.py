"""Hostile bodies of generation requests."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.gateway.hostile.case import CHAT, chat_fields, fields_of

_FIELDS = (
    *("model", "messages", "prompt", "stream", "n", "max_tokens", "max_completion_tokens", "min_tokens", "seed"),
    *("temperature", "top_p", "top_k", "stop", "stop_token_ids", "logprobs", "top_logprobs", "logit_bias", "tools"),
    *("tool_choice", "class", "priority", "cache_salt", "stream_options", "presence_penalty", "user", "metadata"),
    *("inflight_continuation", "return_token_ids", "response_format", "echo", "best_of", "unknown_field", "", "\0"),
    *("input", "max_output_tokens", "instructions", "text", "reasoning", "store", "previous_response_id", "include"),
    *("system", "thinking", "stop_sequences", "context_management", "dimensions", "encoding_format", "query"),
    *("documents", "queries", "items", "text_1", "text_2", "data_1", "top_n", "truncate_prompt_tokens", "service_tier"),
)

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3.7, -0.0, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400, 1e308, 5e-324),
    *("", "x", "\0", "\u202e", "é" * 300, "x" * 20_000, [], {}, [None], [[]], [{}], {"a": 1}, [1, "x", None, {}]),
    *([{"role": "user"}], [{"role": 5, "content": 7}], [{"role": "user", "content": [{"type": "image_url"}]}]),
    *([{"role": "user", "content": [{"type": "text", "text": 9}]}], [[1, 2], [3, -4]], [1, 2, 10**30], ["a", 1, [2]]),
    *({"choices": [{"token_ids": [1] * 500}]}, {"choices": 1, "created": "x"}, {"include_usage": "x"}),
    *(
        {"type": "enabled", "budget_tokens": 10**30},
        {"usage": {"prompt_tokens": 0, "completion_tokens": 0}},
        [["a"]] * 99,
    ),
    *({"type": "function", "function": {"name": "\n"}}, [{"type": "function"}], {"1": 10**9}, {"x": "y"}),
)

_TEXT = chat_fields()


def hostile_body(random: Random, target: str = CHAT) -> bytes:
    if random.random() < 3 / 7:
        return _wrong_field(random, fields_of(target))
    return random.choice((_broken_text, _nested, _numbers, _bytes))(random)


def _dump(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def _wrong_field(random: Random, fields: dict[str, Any]) -> bytes:
    """A body with one to three fields of a wrong type, size or meaning."""
    for _ in range(random.randint(1, 3)):
        fields[random.choice(_FIELDS)] = random.choice(_VALUES)
    return _dump(fields)


def _broken_text(random: Random) -> bytes:
    whole = _dump(_TEXT)
    return random.choice(
        (
            b"",
            whole[: random.randrange(len(whole))],
            whole + b"}",
            whole + whole,
            whole.replace(b":", b"=", 1),
            whole.replace(b'"', b"'"),
            b"\xef\xbb\xbf" + whole,
            whole.decode().encode("utf-16"),
            b"[" + whole + b"]",
            b"null",
            b"5",
            b'"text"',
            b"// comment\n" + whole,
            whole[:-1] + b",}",
            b'{"model": "m", "model": "other", "messages": 1, ' + whole[1:],
        )
    )


def _nested(random: Random) -> bytes:
    """Depths around the limits of recursive decoders and encoders, in fields that are read, and in one that is not."""
    depth = random.choice((50, 300, 450, 600, 900, 990, 1100, 5_000, 100_000))
    opening, closing = random.choice((("[", "]"), ('{"a":', "}")))
    value = opening * depth + "1" + closing * depth
    place = random.choice(
        (
            '"messages":%s',
            '"messages":[{"role":%s,"content":"x"}]',
            '"messages":[{"role":"user","content":%s}]',
            '"messages":[{"role":"user","content":"x","tool_calls":%s}]',
            '"messages":[{"role":"user","content":"x"}],"tools":%s',
            '"messages":[{"role":"user","content":"x"}],"unknown":%s',
            '"messages":[{"role":"user","content":"x"}],"stream":%s',
            '"messages":[{"role":"user","content":"x"}],"inflight_continuation":%s',
            '"prompt":%s',
        )
    )
    return b'{"model":"m",' + (place % value).encode() + b"}"


def _numbers(random: Random) -> bytes:
    number = random.choice(
        (
            "NaN",
            "Infinity",
            "-Infinity",
            "1e999",
            "-1e999",
            "01",
            "+1",
            ".5",
            "1.",
            "0x10",
            "1_000",
            "9" * 400,
            "9" * 4200,
            "9" * 5000,
            "-" + "9" * 4299,
            "1e-999",
            "1.5e308",
            "1E400",
            "--1",
            "-",
        )
    )
    field = random.choice(
        (
            *("priority", "max_tokens", "temperature", "n", "seed", "stream", "model", "min_tokens"),
            *("max_output_tokens", "max_completion_tokens", "dimensions", "top_n", "thinking", "best_of"),
        )
    )
    return b'{"messages":[{"role":"user","content":"x"}],"%b":%b}' % (field.encode(), number.encode())


def _bytes(random: Random) -> bytes:
    """A body with invalid UTF-8 or Unicode in the text of a message, a role, a model or the name of a field."""
    hostile = random.choice(
        (
            b"\xff",
            b"\xc0\xaf",
            b"\xed\xa0\x80",
            b"\xf4\x90\x80\x80",
            b"\\ud800",
            b"\\udc00\\ud800",
            b"\\u0000",
            b"\\x41",
            b"\x00",
            b"\n",
            b"\x1e",
            b"\\ud83d",
            b"\\u12",
            b"\\",
            b"\xe2\x80\xa8",
            b"\xf0\x9f\x98",
            b"\\ud800x",
            b"\x7f",
        )
    )
    template = random.choice(
        (
            b'{"model":"m%s","messages":[{"role":"user","content":"x"}]}',
            b'{"model":"m","messages":[{"role":"us%s","content":"x"}]}',
            b'{"model":"m","messages":[{"role":"user","content":"a%sb"}]}',
            b'{"model":"m","messages":[{"role":"user","content":"x"}],"na%sme":1}',
            b'{"model":"m","messages":[{"role":"user","content":"x"}],"class":"%s"}',
            b'{"model":"m","prompt":"%s"}',
            b'{"model":"m","messages":[{"role":"user","content":"x"}],"cache_salt":"%s"}',
        )
    )
    return template % hostile

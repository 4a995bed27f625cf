"""Longest time between two events of a stream while another client sends large bodies to the same engine."""

from __future__ import annotations

import asyncio
import http.client
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from inflight_settings.requests import MAX_BODY_BYTES
from tools.bench.gateway.client import Stream, open_streams
from tools.measure.served import served_engine

GOAL_SECONDS = 0.1
_AFTER_SECONDS = 0.5
"""For which a stream is watched after the answer to a body."""
_STREAM_TOKENS = 7000
"""Length of the stream's answer: it lasts for minutes."""

_LONGEST = 2**24 - 64
"""Bytes of a string."""
_NEXT = b'","'
"""Between two strings."""

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Sent(NamedTuple):
    """A body: its path, and what is before and after a part that is repeated.

    Attributes:
        most: repetitions; None: as many as a string may be long. The body is no longer than one may be.
        strings: number of strings that each have the repeated part.
    """

    path: str
    before: str
    part: str
    after: str
    most: int | None = None
    strings: int = 1

    def content(self) -> bytes:
        before, part, after = self.before.encode(), self.part.encode(), self.after.encode()
        most = _LONGEST // len(part) if self.most is None else self.most
        room = (MAX_BODY_BYTES - len(before) - len(after)) // self.strings - len(_NEXT)
        return before + _NEXT.join([part * min(most, room // len(part))] * self.strings) + after


def _message(text: str) -> str:
    return json.dumps({"role": "user", "content": text})


def _call(arguments: str) -> tuple[str, str]:
    """A call of a tool in a conversation: up to and after what is within its arguments."""
    call = {"type": "function", "function": {"name": "f", "arguments": "@"}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    before, after = json.dumps({"max_tokens": 1, "messages": messages}).split("@")
    return before + arguments, after


def _grammar(kind: str) -> tuple[str, str]:
    before, after = json.dumps({"prompt": "a", "structured_outputs": {kind: "@"}}).split("@")
    return before, after


_TEXTS = {
    "text": "a",
    "words": "The engine admits requests. ",
    "spaces": " ",
    "digits": "7",
    "base64": "iVBORw0KGgoAAAANSUhEUgAA",
    "unicode": "€",
    "emoji": "😀",
    "escapes": "\\u0041",
    "escaped unicode": "\\u20ac",
    "escaped emoji": "\\ud83d\\ude00",
    "escaped newlines": "\\n",
}

BODIES: Mapping[str, Sent] = {
    **{name: Sent(COMPLETIONS, '{"prompt":"', part, '"}') for name, part in _TEXTS.items()},
    **{f"{name}, twice": Sent(COMPLETIONS, '{"prompt":["', part, '"]}', strings=2) for name, part in _TEXTS.items()},
    "short escapes": Sent(COMPLETIONS, '{"prompt":[', '"' + "\\u20ac" * 85 + '",', '"a"]}', 60_000),
    "too long a text": Sent(COMPLETIONS, '{"prompt":"', "\\u20ac", '"}', MAX_BODY_BYTES),
    "text, one emoji": Sent(COMPLETIONS, '{"prompt":"', "a", '😀"}', _LONGEST - 8),
    "message": Sent(CHAT, '{"messages":[{"role":"user","content":"', "Hello ", '"}]}'),
    "messages": Sent(CHAT, '{"messages":[', _message("a" * 2000) + ",", _message("a") + "]}", 13_000),
    "short messages": Sent(CHAT, '{"messages":[', _message("a") + ",", _message("a") + "]}", 13_000),
    "too many messages": Sent(CHAT, '{"messages":[', _message("a") + ",", _message("a") + "]}", MAX_BODY_BYTES),
    "strings": Sent(COMPLETIONS, '{"prompt":[', '"a",', '"a"]}', 65_000),
    "long strings": Sent(COMPLETIONS, '{"prompt":[', f'"{"a" * 500}",', '"a"]}', 65_000),
    "token ids": Sent(COMPLETIONS, '{"prompt":[', "12345,", "1]}", 2**20 - 1),
    "ids, 128 answers": Sent(COMPLETIONS, '{"n":128,"max_tokens":1,"prompt":[', "12345,", "1]}", 8000),
    "long numbers": Sent(COMPLETIONS, '{"prompt":[', f"{'7' * 30},", "1]}", 2**20 - 1),
    "one number": Sent(COMPLETIONS, '{"seed":', "7", ',"prompt":"a"}', MAX_BODY_BYTES),
    "arrays": Sent(COMPLETIONS, '{"prompt":', "[", "", MAX_BODY_BYTES),
    "objects": Sent(COMPLETIONS, '{"prompt":', '{"a":', "", MAX_BODY_BYTES),
    "name of a field": Sent(COMPLETIONS, '{"prompt":"a","', "a", '":1}', MAX_BODY_BYTES),
    "user": Sent(COMPLETIONS, '{"prompt":"a","user":"', "a", '"}'),
    "half a pair": Sent(COMPLETIONS, '{"prompt":"', "\\u0041", '\\ud800"}', _LONGEST // 6 - 1),
    "arguments": Sent(CHAT, _call('{\\"a\\":[1')[0], ",1", "]}" + _call("")[1]),
    "long argument": Sent(CHAT, _call('{\\"a\\":\\"')[0], "a", '\\"}' + _call("")[1]),
    "variables": Sent(
        CHAT,
        f'{{"max_tokens":1,"messages":[{_message("a")}],"chat_template_kwargs":{{"a":[',
        "12345,",
        "1]}}",
        2**20 - 8,
    ),
    "tool": Sent(
        CHAT,
        f'{{"max_tokens":1,"messages":[{_message("a")}],"tools":[{{"type":"function","function":{{"name":"f","description":"',
        "a",
        '"}}]}',
    ),
    "schema": Sent(
        COMPLETIONS,
        '{"prompt":"a","response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"description":"',
        "a",
        '"}}}}',
    ),
    "enum": Sent(
        COMPLETIONS,
        '{"prompt":"a","response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"enum":[',
        "12345,",
        "1]}}}}",
        2**20 - 16,
    ),
    "written schema": Sent(COMPLETIONS, _grammar("json")[0] + '{\\"enum\\":[1', ",1", "]}" + _grammar("json")[1]),
    **{kind: Sent(COMPLETIONS, _grammar(kind)[0], "a", _grammar(kind)[1]) for kind in ("regex", "grammar")},
    "choices": Sent(
        COMPLETIONS, '{"prompt":"a","structured_outputs":{"choice":[', f'"{"a" * 500}",', '"a"]}}', 65_000
    ),
    "tokenize": Sent("/tokenize", '{"prompt":"', "7", '"}'),
    "detokenize": Sent("/detokenize", '{"tokens":[', "30000,", "1]}", 2**20 - 1),
    "response": Sent("/v1/responses", '{"input":"', "\\u0041", '"}'),
    "Anthropic message": Sent(
        "/v1/messages", '{"model":"smollm2","max_tokens":1,"messages":[{"role":"user","content":"', "\\u20ac", '"}]}'
    ),
}  # fmt: skip


class Gap(NamedTuple):
    """Measurement of a stream beside a body.

    Attributes:
        status: of the answer to the body.
        took: seconds until that answer.
        longest: seconds between two events.
    """

    status: int
    took: float
    longest: float


def measure(names: Sequence[str], tries: int, say: Callable[[str, Gap], None]) -> None:
    """Measures the longest gap beside each body, and first beside none.

    Args:
        tries: of each body; the longest gap of all counts.
        say: called with each result.
    """
    with tempfile.TemporaryDirectory() as folder, served_engine(Path(folder) / "engine.log") as url:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        asyncio.run(_measure((address.hostname, address.port), names, tries, say))


async def _measure(address: tuple[str, int], names: Sequence[str], tries: int, say: Callable[[str, Gap], None]) -> None:
    body = {"prompt": "hello", "ignore_eos": True}
    for name in ("", *names):
        sent = BODIES.get(name)
        content = b"" if sent is None else await asyncio.to_thread(sent.content)
        found: list[Gap] = []
        async with open_streams(address, 1, body, tokens=_STREAM_TOKENS) as (stream,):
            await asyncio.sleep(_AFTER_SECONDS)
            for _ in range(tries):
                found.append(await _beside(stream, address, "" if sent is None else sent.path, content))
        longest = max(found, key=lambda gap: gap.longest)
        say(name or "none", longest)


async def _beside(stream: Stream, address: tuple[str, int], path: str, content: bytes) -> Gap:
    stream.forget()
    began, status = time.perf_counter(), 0
    if content:
        status = await asyncio.to_thread(_post, address, path, content)
    else:
        await asyncio.sleep(2.0)
    took = time.perf_counter() - began
    await asyncio.sleep(_AFTER_SECONDS)
    return Gap(status, took, stream.longest_s)


def _post(address: tuple[str, int], path: str, content: bytes) -> int:
    connection = http.client.HTTPConnection(*address, timeout=300)
    connection.request("POST", path, content, {"Content-Type": "application/json"})
    response = connection.getresponse()
    while response.read(1 << 16):
        pass
    connection.close()
    return response.status

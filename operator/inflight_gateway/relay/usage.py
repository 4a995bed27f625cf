"""Token counts of streams whose client did not ask for them: the gateway asks the engine and removes them.

Without them, streams of engines without progress frames would count no output.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from inflight_gateway.relay.answer import Usage

_STRIPPED_PATHS = frozenset((b"/v1/chat/completions", b"/v1/completions"))
"""Paths with `stream_options` (OpenAI's)."""

_TAIL_BYTES = 2048
"""Bytes at the end of an answer that hold its token counts, if it has any."""

_MAX_EVENT_BYTES = 64 * 2**10
"""Longest event that may be the one with the token counts; longer ones pass in parts."""

# Quotes within a JSON string are escaped, so that text of an answer matches none of these.
_COUNT = re.compile(rb'"(prompt_tokens|cached_tokens|completion_tokens)":\s*(\d{1,12})\b')
_NO_CHOICES = re.compile(rb'"choices":\s*\[\s*\]')
_NULL_USAGE = re.compile(rb',\s*"usage":\s*null')
_CONTENT = re.compile(rb'"(?:content|text|reasoning|reasoning_content|arguments)":\s*"(?!")')
_EVENT_END = re.compile(rb"\r?\n\r?\n")


class _Fields(msgspec.Struct):
    """Fields of a request's body, as JSON; others, possibly of megabytes, are skipped."""

    n: int | None = None
    prompt: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    stream_options: msgspec.Raw = msgspec.Raw()


class _Options(msgspec.Struct):
    include_usage: bool | None = None


_fields = msgspec.json.Decoder(_Fields, strict=False)
_options = msgspec.json.Decoder(_Options | None)
_SEVERAL = re.compile(rb'\[\s*["\[]')


class Asked(NamedTuple):
    """A request as an engine gets it. Attributes: num_choices: `n` for each of its prompts. strip: the token counts are
    not for the client."""

    body: bytes
    num_choices: int
    strip: bool


def asked(body: bytes, path: bytes) -> Asked:
    """Returns the request with the token counts asked for, other fields byte for byte. Fields of unexpected types stay:
    an engine refuses them. Args: body: a JSON object."""
    try:
        fields = _fields.decode(body)
    except ValueError:
        return Asked(body, 1, strip=False)
    several = _SEVERAL.match(fields.prompt)
    prompts = len(msgspec.json.decode(fields.prompt, type=list[msgspec.Raw])) if several else 1
    num_choices = max(1, fields.n or 1) * max(1, prompts)
    if path not in _STRIPPED_PATHS or bytes(fields.stream) != b"true":
        return Asked(body, num_choices, strip=False)
    if not len(fields.stream_options):
        opened = body.rstrip().removesuffix(b"}")
        return Asked(opened + b',"stream_options":{"include_usage":true}}', num_choices, strip=True)
    try:
        options = _options.decode(fields.stream_options)
    except ValueError:
        return Asked(body, num_choices, strip=False)
    if options is not None and options.include_usage:
        return Asked(body, num_choices, strip=False)
    return Asked(_with_usage(body), num_choices, strip=True)


def _with_usage(body: bytes) -> bytes:
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    options = msgspec.json.decode(fields["stream_options"], type=dict[str, msgspec.Raw] | None) or {}
    options["include_usage"] = msgspec.Raw(b"true")
    fields["stream_options"] = msgspec.Raw(msgspec.json.encode(options))
    return msgspec.json.encode(fields)


def without_usage(event: bytes, *, counts: bool) -> bytes:
    """Returns an event of a stream without token counts; empty if it has nothing else.

    Args:
        counts: it may be the one with the counts of the whole answer.
    """
    if counts and _NO_CHOICES.search(event) is not None and b'"usage"' in event:
        return b""
    # Engines that follow OpenAI write it in all other events.
    return event.replace(b',"usage":null', b"")


class PlainUsage:
    """Token counts of an answer without progress frames. Args: strip: its client gets none.

    Attributes: kept_bytes: of an incomplete event.
    """

    __slots__ = ("_begun", "_contents", "_passing", "_strip", "_tail", "_usage")

    def __init__(self, *, strip: bool) -> None:
        self._strip = strip
        self._begun = b""
        self._passing = False
        """Within an event that is too long to be kept."""
        self._contents = 0
        self._tail = b""
        self._usage: Usage | None = None

    @property
    def kept_bytes(self) -> int:
        return len(self._begun)

    @property
    def usage(self) -> Usage | None:
        """The counts, or, for a stream without them, the events with text: a lower bound. None: there is neither."""
        found = self._usage or _usage_in(self._tail)
        if found is None and self._contents:
            return Usage(completion_tokens=self._contents)
        return found

    def take(self, data: bytes) -> bytes:
        """Returns what the client gets of a part of the answer."""
        if not self._strip:
            self._contents += len(_CONTENT.findall(data)) if data.startswith(b"data:") else 0
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
            return data
        begun = self._begun + data if self._begun else data
        end = 0
        passed: list[bytes] = []
        for match in _EVENT_END.finditer(begun):
            event, end = begun[end : match.end()], match.end()
            passed.append(event if self._passing else self._event(event))
            self._passing = False
        self._begun = begun[end:]
        if self._passing or len(self._begun) > _MAX_EVENT_BYTES:
            self._passing = True
            passed.append(self._begun)
            self._begun = b""
        return b"".join(passed)

    def end(self) -> bytes:
        """Returns what the client gets at the end."""
        rest, self._begun = self._begun, b""
        return rest

    def _event(self, event: bytes) -> bytes:
        if b'"usage"' not in event:
            self._contents += len(_CONTENT.findall(event))
            return event
        left = _NULL_USAGE.sub(b"", event)
        if b'"usage"' in left:
            self._usage = _usage_in(left) or self._usage
            if _NO_CHOICES.search(left) is not None:
                return b""
        self._contents += len(_CONTENT.findall(left))
        return left


def _usage_in(tail: bytes) -> Usage | None:
    """Returns the last `usage` object of OpenAI's format: a stream may have one in each chunk."""
    counts = {name.decode(): int(count) for name, count in _COUNT.findall(tail)}
    return Usage(**counts) if counts else None

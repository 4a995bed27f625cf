"""Token counts of streams whose client did not ask for them: the gateway asks the engine and removes them. Streams of
OpenAI Responses and Anthropic Messages always have them.

Without them, streams of engines without progress frames would count no output.
"""

from __future__ import annotations

import re

import msgspec

from inflight_gateway.relay.answers.answer import Usage

_PATHS = frozenset((b"/v1/chat/completions", b"/v1/completions"))
"""Paths with `stream_options` (OpenAI's)."""

_EDGE_BYTES = 2048
"""Bytes at the end of an answer, or at its begin, that hold its token counts, if it has any."""

_MAX_EVENT_BYTES = 64 * 2**10
"""Longest event that may be the one with the token counts; longer ones pass in parts."""

# Quotes within a JSON string are escaped, so that text of an answer matches none of these.
_COUNT = re.compile(
    rb'"((?:prompt|completion|cached|input|output|cache_read_input|cache_creation_input)_tokens)":\s*(\d{1,12})\b'
)
_NO_CHOICES = re.compile(rb'"choices":\s*\[\s*\]')
_NULL_USAGE = re.compile(rb',\s*"usage":\s*null')
_CONTENT = re.compile(
    rb'"(?:content|text|reasoning|reasoning_content|arguments|delta|thinking|partial_json)":\s*"(?!")'
)
_EVENT_END = re.compile(rb"\r?\n\r?\n")


class _Fields(msgspec.Struct):
    """Fields of a request's body, as JSON; others, possibly of megabytes, are skipped."""

    stream: msgspec.Raw = msgspec.Raw()
    stream_options: msgspec.Raw = msgspec.Raw()


class _Options(msgspec.Struct):
    include_usage: bool | None = None


_fields = msgspec.json.Decoder(_Fields)
_options = msgspec.json.Decoder(_Options | None)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def with_usage(body: bytes, path: bytes) -> bytes | None:
    """Returns the body of a request for a stream with the token counts asked for, other fields byte for byte. None: the
    client asks for them itself, there is no such field, or an engine refuses the fields.

    Args:
        body: a JSON object.
    """
    if path not in _PATHS:
        return None
    fields = _fields.decode(body)
    if bytes(fields.stream) != b"true":
        return None
    if not len(fields.stream_options):
        # One copy: a body may have 32 MiB.
        return b"".join((memoryview(body)[: body.rindex(b"}")], b',"stream_options":{"include_usage":true}}'))
    try:
        options = _options.decode(fields.stream_options)
    except ValueError:
        return None
    if options is not None and options.include_usage:
        return None
    changed = {} if options is None else _object.decode(fields.stream_options)
    changed["include_usage"] = msgspec.Raw(b"true")
    return msgspec.json.encode({**_object.decode(body), "stream_options": changed})


def without_usage(event: bytes, *, counts: bool) -> bytes:
    """Returns the data of a frame without token counts; empty if it has nothing else.

    Args:
        counts: it may have those of the whole answer.
    """
    if counts and _NO_CHOICES.search(event) is not None:
        return b""
    # Engines that follow OpenAI write it in all other events.
    return event.replace(b',"usage":null', b"")


class PlainUsage:
    """Token counts of an answer without progress frames. Args: strip: its client gets none.

    Attributes: kept_bytes: of an incomplete event.
    """

    __slots__ = ("_begun", "_contents", "_head", "_passing", "_strip", "_tail", "_usage")

    def __init__(self, *, strip: bool) -> None:
        self._strip = strip
        self._begun = bytearray()
        self._passing = False
        """Within an event that is too long to be kept."""
        self._contents = 0
        self._head = self._tail = b""
        self._usage: Usage | None = None

    @property
    def kept_bytes(self) -> int:
        return len(self._begun)

    @property
    def usage(self) -> Usage | None:
        """The counts, or, for a stream without them, the events with text: a lower bound. None: there is neither."""
        found = self._usage or _usage_in(self._head, self._tail)
        if found is None and self._contents:
            return Usage(completion_tokens=self._contents)
        return found

    def take(self, data: bytes) -> bytes:
        """Returns what the client gets of a part of the answer."""
        if not self._strip:
            self._contents += len(_CONTENT.findall(data)) if data.startswith((b"data:", b"event:")) else 0
            self._head = self._head or data[:_EDGE_BYTES]
            self._tail = (self._tail + data)[-_EDGE_BYTES:]
            return data
        begun = self._begun
        searched, end = max(0, len(begun) - 3), 0
        begun += data
        passed: list[bytes] = []
        for match in [*_EVENT_END.finditer(begun, searched)]:
            event, end = bytes(begun[end : match.end()]), match.end()
            passed.append(event if self._passing else self._event(event))
            self._passing = False
        del begun[:end]
        if self._passing or len(begun) > _MAX_EVENT_BYTES:
            self._passing = True
            passed.append(bytes(begun))
            begun.clear()
        return b"".join(passed)

    def end(self) -> bytes:
        """Returns what the client gets at the end."""
        rest = bytes(self._begun)
        self._begun.clear()
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


def _usage_in(*parts: bytes) -> Usage | None:
    """Returns the counts of the last `usage` object: a stream may have one in each chunk, or the half of it in its
    first event. Anthropic's input tokens are without cached ones, those of OpenAI Responses with them."""
    counts = {name.decode(): int(count) for part in parts for name, count in _COUNT.findall(part)}
    if not counts:
        return None
    read = counts.get("cache_read_input_tokens", 0)
    inputs = counts.get("input_tokens", 0) + read + counts.get("cache_creation_input_tokens", 0)
    return Usage(
        counts.get("prompt_tokens", inputs),
        counts.get("cached_tokens", read),
        counts.get("completion_tokens", counts.get("output_tokens", 0)),
    )

"""Token counts of streams whose client did not ask for them: the gateway asks the engine and removes them. Streams of
OpenAI Responses and Anthropic Messages always have them.

Without them, streams of engines without progress frames would count no output.
"""

from __future__ import annotations

import re

import msgspec

from inflight_gateway.relay.answers.answer import Usage
from inflight_gateway.relay.answers.frames import MAX_FRAMES
from inflight_gateway.relay.answers.json_usage import UsageReader

_PATHS = frozenset((b"/v1/chat/completions", b"/v1/completions"))
"""Paths with `stream_options` (OpenAI's)."""

_MAX_EVENT_BYTES = 64 * 2**10
"""Longest event that may be the one with the token counts; longer ones pass in parts."""

# Quotes within a JSON string are escaped, so that text of an answer matches none of these.
_NO_CHOICES = re.compile(rb'"choices":\s*\[\s*\]')
_NULL_USAGE = re.compile(rb',\s*"usage":\s*null')
_CONTENT = re.compile(
    rb'"(?:content|text|reasoning|reasoning_content|arguments|delta|thinking|partial_json)":\s*"(?!")'
)
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_JSON_BEGINS = (b"{", b"[", b" ", b"\n", b"\r", b"\t")


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
    """Token counts of an answer that passes as it comes.

    Args:
        strip: its client gets none.
        told: the engine's notes have them, so that the answer is not read.

    Attributes: kept_bytes: of an incomplete event.
    """

    __slots__ = ("_begun", "_contents", "_passing", "_reader", "_strip", "_unread", "_whole")

    def __init__(self, *, strip: bool, told: bool = False) -> None:
        self._strip = strip
        self._unread = told
        self._begun = bytearray()
        self._passing = False
        """Within an event that is too long to be kept."""
        self._contents = 0
        self._reader = UsageReader()
        self._whole: bool | None = None
        """The answer is one JSON text, and no stream; None: nothing has come yet."""

    @property
    def kept_bytes(self) -> int:
        return len(self._begun)

    @property
    def usage(self) -> Usage | None:
        """The counts, or, for a stream without them, the events with text: a lower bound. None: there is neither."""
        found = self._reader.usage
        if found is None and self._contents:
            return Usage(completion_tokens=self._contents)
        return found

    def take(self, data: bytes) -> bytes:
        """Returns what the client gets of a part of the answer."""
        if self._unread:
            return data
        if data.count(b"\n\n") + data.count(b"\n\r\n") > MAX_FRAMES:
            self._unread = True
            return self.end() + data
        if self._whole is None:
            self._whole = not self._strip and data[:1] in _JSON_BEGINS
        if self._whole:
            self._reader.feed(data)
            return data
        left = self._events(data)
        return left if self._strip else data

    def end(self) -> bytes:
        """Returns what the client gets at the end."""
        rest = bytes(self._begun)
        self._begun.clear()
        self._event(rest)
        return rest if self._strip else b""

    def _events(self, data: bytes) -> bytes:
        """Returns the events that a part completes, without counts if they are stripped."""
        begun = self._begun
        searched, end = max(0, len(begun) - 3), 0
        begun += data
        passed: list[bytes] = []
        for match in [*_EVENT_END.finditer(begun, searched)]:
            event, end = bytes(begun[end : match.end()]), match.end()
            passed.append(self._part(event) if self._passing else self._event(event))
            self._passing = False
        del begun[:end]
        if self._passing or len(begun) > _MAX_EVENT_BYTES:
            if not self._passing:
                self._reader.restart()
            self._passing = True
            passed.append(self._part(bytes(begun)))
            begun.clear()
        return b"".join(passed)

    def _part(self, part: bytes) -> bytes:
        self._reader.feed(part)
        return part

    def _event(self, event: bytes) -> bytes:
        left = event
        if b'"usage"' in event:
            left = _NULL_USAGE.sub(b"", event)
            if b'"usage"' in left:
                self._reader.restart()
                self._reader.feed(left)
                if _NO_CHOICES.search(left) is not None:
                    return b""
        self._contents += len(_CONTENT.findall(left))
        return left

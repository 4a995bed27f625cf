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
from inflight_gateway.relay.answers.kept import AnswerBytes

_PATHS = frozenset((b"/v1/chat/completions", b"/v1/completions"))
"""Paths with `stream_options` (OpenAI's)."""

_MAX_EVENT_BYTES = 64 * 2**10
"""Longest event that may be the one with the token counts; longer ones pass in parts."""

MAX_COUNTED_BYTES = 32 * 2**20
"""Most bytes of answers and long events under way that one process keeps to read their counts."""

_MAX_TEXT_BYTES = 8 * 2**20
"""Most of them of one answer or event: reading them takes some 8 ms, in which other streams wait."""

_END_BYTES = 64 * 2**10
"""Last bytes of an answer that has not found room, in which its counts are looked for."""

_MOST_OF_AN_END = 3
"""Bytes of an event's end that are not yet known to be one."""

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
    """Token counts of an answer that passes as it comes. Counts are read where a text has ended, of which so much is
    kept as there is room for. Of longer events nothing is read, so that those of their stream with text count; of
    longer answers, the last 64 KiB. If the counts are not there, the answer has none, and is charged like one whose
    engine reports none: its prompt by the estimate.

    Args:
        strip: its client gets none.
        room: memory to read them; None: the engine's notes have them, so that the answer is not read.

    Attributes: kept_bytes: of an incomplete event that the client does not have.
    """

    __slots__ = ("_begun", "_contents", "_cut", "_passing", "_reader", "_room", "_strip", "_text", "_whole")

    def __init__(self, *, strip: bool, room: AnswerBytes | None) -> None:
        self._strip = strip
        self._room = room
        self._begun = bytearray()
        self._passing = False
        """Within an event that is too long to be held back."""
        self._text = bytearray()
        """The bytes of an answer, or of such an event, that are kept to be read; `_cut`: its end only."""
        self._cut = False
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
        room = self._room
        if room is None:
            return data
        if self._whole is None and data:
            self._whole = not self._strip and data[:1] in _JSON_BEGINS
        if self._whole:
            self._keep(data, room)
            return data
        if data.count(b"\n\n") + data.count(b"\n\r\n") > MAX_FRAMES:
            passed = self.end() + data
            self._room = None
            return passed
        left = self._events(data, room)
        return left if self._strip else data

    def end(self) -> bytes:
        """Reads what is left; returns what the client gets at the end."""
        room, rest = self._room, bytes(self._begun)
        self._begun.clear()
        if room is None:
            return b""
        if self._whole:
            if not self._reader.read_end(bytes(self._text[-_END_BYTES:])) and not self._cut:
                self._reader.read(self._text)
        elif self._passing:
            self._end_long(rest, room)
        else:
            rest = self._event(rest)
        self.release()
        return rest if self._strip else b""

    def release(self) -> None:
        """Frees the memory of an answer that has ended; may be called again."""
        self._text.clear()
        if self._room is not None:
            self._room.release()

    def _keep(self, data: bytes, room: AnswerBytes) -> None:
        text = self._text
        text += data
        if self._cut or len(text) > _MAX_TEXT_BYTES or not room.fits(len(text)):
            self._cut = True
            del text[:-_END_BYTES]
            room.fits(len(text))

    def _events(self, data: bytes, room: AnswerBytes) -> bytes:
        """Returns the events that a part completes, without counts if they are stripped."""
        begun = self._begun
        searched, end = max(0, len(begun) - _MOST_OF_AN_END), 0
        begun += data
        passed: list[bytes] = []
        for match in [*_EVENT_END.finditer(begun, searched)]:
            event, end = bytes(begun[end : match.end()]), match.end()
            passed.append(self._end_long(event, room) if self._passing else self._event(event))
        del begun[:end]
        if self._passing or len(begun) > _MAX_EVENT_BYTES:
            self._passing = True
            part = bytes(begun[:-_MOST_OF_AN_END])
            del begun[:-_MOST_OF_AN_END]
            self._keep(part, room)
            passed.append(part)
        return b"".join(passed)

    def _end_long(self, part: bytes, room: AnswerBytes) -> bytes:
        """Reads an event that has passed in parts, of which this is the last."""
        self._keep(part, room)
        if not self._cut:
            self._reader.read(_data(self._text))
        self._passing = self._cut = False
        self.release()
        return part

    def _event(self, event: bytes) -> bytes:
        left = event
        if b'"usage"' in event:
            left = _NULL_USAGE.sub(b"", event)
            if b'"usage"' in left:
                self._reader.read(_data(left))
                if _NO_CHOICES.search(left) is not None:
                    return b""
        self._contents += len(_CONTENT.findall(left))
        return left


def _data(event: bytes | bytearray) -> bytes:
    """Returns the data of an event, or all of what is none: an engine may answer a stream with one JSON text."""
    return b"\n".join(line[5:] for line in event.splitlines() if line.startswith(b"data:")) or bytes(event)

"""Token counts in an answer's JSON, which comes in parts.

An object `usage` counts at the places that APIs have for it, and nowhere else: arguments of calls, and fields that
repeat the request, hold what models and clients write.
"""

from __future__ import annotations

import re

import msgspec

from inflight_gateway.relay.answers.answer import Count, Usage

MAX_USAGE_BYTES = 4096
"""Longest object that is read."""

_BYTES_PER_OBJECT = 4
"""Least bytes of a part for each object or list that begins in it. No answer has more of them over a whole part, and
each takes this process much longer than its engine."""

_OBJECTS = 256
"""Objects and lists that a part may have beside, however short it is."""

_NAME = b'"usage"'
_AROUND = (b'"response"', b'"message"')
"""Fields of an event whose object may have the counts: those of OpenAI Responses and Anthropic Messages."""

_MAX_NAME_BYTES = max(map(len, (_NAME, *_AROUND)))

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\]]', re.DOTALL)
"""A whole string, the beginning of one that is not complete, or a bracket."""

_STRING_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class _Cached(msgspec.Struct):
    cached_tokens: Count | None = None


class _Counts(msgspec.Struct):
    """The counts by the names of all APIs. Anthropic's input tokens are without cached ones, those of OpenAI Responses
    with them."""

    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None
    completion_tokens: Count | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    prompt_tokens_details: _Cached | None = None
    input_tokens_details: _Cached | None = None


_decoder = msgspec.json.Decoder(_Counts)


class UsageReader:
    """Reads one value after the other. Numbers of later objects replace those of earlier ones: a stream may have one in
    each event, or the half of it in its first event."""

    __slots__ = ("_around", "_begun", "_counts", "_depth", "_escape", "_given_up", "_in_string", "_name", "_until")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self.restart()

    def restart(self) -> None:
        """Begins another value."""
        self._depth = 0
        self._in_string = False
        self._name = self._escape = b""
        """The last string; the backslash at the end of the last part, within a string."""
        self._around = False
        """The object at depth 2 may have the counts."""
        self._begun: bytearray | None = None
        """Begin of the object `usage`, which ends at the depth `_until`."""
        self._until = 0
        self._given_up = False
        """The value is not read to its end."""

    def feed(self, data: bytes) -> None:
        """Reads a part of the value. One with too many objects is given up."""
        if self._given_up:
            return
        data, self._escape = self._escape + data, b""
        at = self._end_of_string(data) if self._in_string else 0
        kept_from, most = 0, _OBJECTS + len(data) // _BYTES_PER_OBJECT
        for token in _TOKEN.finditer(data, at) if not self._in_string else ():
            text = token[0]
            if text == b'"':
                self._in_string = True
                self._name = text
                self._unfinished(data, token.end())
                break
            if text[0] == b'"'[0]:
                self._name = text if len(text) <= _MAX_NAME_BYTES else b""
            elif text in b"{[":
                most -= 1
                if most < 0:
                    self._given_up, self._begun = True, None
                    return
                self._depth += 1
                if self._depth == 2:
                    self._around = text == b"{" and self._name in _AROUND
                if self._begun is None and text == b"{" and self._counts_begin():
                    self._begun, self._until = bytearray(), self._depth - 1
                    kept_from = token.start()
                self._name = b""
            else:
                self._depth = max(0, self._depth - 1)
                if self._begun is not None and self._depth == self._until:
                    self._take(bytes(self._begun) + data[kept_from : token.end()])
        if self._begun is not None:
            self._begun += data[kept_from : len(data) - len(self._escape)]
            if len(self._begun) > MAX_USAGE_BYTES:
                self._begun = None

    @property
    def usage(self) -> Usage | None:
        """The counts; None: there were none."""
        counts = self._counts
        if not counts:
            return None
        read = counts.get("cache_read_input_tokens", 0)
        inputs = counts.get("input_tokens", 0) + read + counts.get("cache_creation_input_tokens", 0)
        return Usage(
            counts.get("prompt_tokens", inputs),
            counts.get("cached_tokens", read),
            counts.get("completion_tokens", counts.get("output_tokens", 0)),
        )

    def _end_of_string(self, data: bytes) -> int:
        """Returns where the string that an earlier part began ends."""
        end = _STRING_REST.match(data)
        if end is None:
            self._unfinished(data, 0)
            return len(data)
        self._in_string = False
        self._name = self._name + end[0] if len(self._name) + len(end[0]) <= _MAX_NAME_BYTES else b""
        return end.end()

    def _unfinished(self, data: bytes, begin: int) -> None:
        """Notes the rest of a part, which is within a string."""
        rest = data[begin:]
        if (len(rest) - len(rest.rstrip(b"\\"))) % 2:
            self._escape = b"\\"
        self._name += rest[: _MAX_NAME_BYTES + 1 - len(self._name)]

    def _counts_begin(self) -> bool:
        """Returns whether the object that begins has the counts. In an object, the string before it is its name."""
        return self._name == _NAME and (self._depth == 2 or (self._depth == 3 and self._around))

    def _take(self, text: bytes) -> None:
        self._begun = None
        if len(text) > MAX_USAGE_BYTES:
            return
        try:
            found = _decoder.decode(text)
        except ValueError:
            return
        for details in (found.prompt_tokens_details, found.input_tokens_details):
            if details is not None and details.cached_tokens is not None:
                self._counts["cached_tokens"] = details.cached_tokens
        self._counts |= {name: each for name, each in msgspec.structs.asdict(found).items() if isinstance(each, int)}

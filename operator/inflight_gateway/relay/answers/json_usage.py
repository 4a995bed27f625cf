"""Token counts in an answer's JSON.

An object `usage` counts at the places that APIs have for it, and nowhere else: arguments of calls, and fields that
repeat the request, hold what models and clients write.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from inflight_gateway.relay.answers.answer import Count, Usage

_MAX_TRIES = 16
"""Most names `usage` at which the end of an answer is tried."""

_MEMBER = re.compile(rb',\s*+"usage"')


_NULL = msgspec.Raw(b"null")


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


class _Around(msgspec.Struct):
    usage: msgspec.Raw = _NULL


class _Text(_Around):
    """The fields of an answer or event; others, possibly of megabytes, are skipped. Events of OpenAI Responses and
    Anthropic Messages have the counts in `response` and `message`."""

    response: msgspec.Raw = _NULL
    message: msgspec.Raw = _NULL


_T = TypeVar("_T")
_texts, _arounds = msgspec.json.Decoder(_Text), msgspec.json.Decoder(_Around | None)
_decoder = msgspec.json.Decoder(_Counts | None)


class UsageReader:
    """Reads one text after the other. Numbers of later objects replace those of earlier ones: a stream may have one in
    each event, or the half of it in its first event."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def read(self, text: bytes | bytearray) -> bool:
        """Reads a whole text; returns False where it is no JSON object, or too deep."""
        found = _decoded(_texts, text)
        if found is None:
            return False
        for around in (found, _decoded(_arounds, found.response), _decoded(_arounds, found.message)):
            counts = None if around is None else _decoded(_decoder, around.usage)
            if counts is not None:
                self._take(counts)
        return True

    def read_end(self, end: bytes) -> bool:
        """Reads the last bytes of a JSON object, as far as they are whole members of it; returns False where `usage` is
        not among these.

        Where the text from a comma on, with a brace before it, is a JSON object, its quotes and brackets pair, so its
        last brace is that of the answer, and its members are the answer's.
        """
        starts = [match.start() for match in _MEMBER.finditer(end)][-_MAX_TRIES:]
        return any(self.read(b"{" + end[start + 1 :]) for start in reversed(starts))

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

    def _take(self, found: _Counts) -> None:
        for details in (found.prompt_tokens_details, found.input_tokens_details):
            if details is not None and details.cached_tokens is not None:
                self._counts["cached_tokens"] = details.cached_tokens
        self._counts |= {name: each for name, each in msgspec.structs.asdict(found).items() if isinstance(each, int)}


def _decoded(decoder: msgspec.json.Decoder[_T], text: bytes | bytearray | msgspec.Raw) -> _T | None:
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError):
        return None

"""State of a response so far, per choice, from an engine's progress frames: enough to continue it elsewhere.

Token ids stay text: they come as `1,2,3` and go into a JSON list as they are, so that a token costs a few bytes of
memory and no conversion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """Tokens of the whole answer, continuations included."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class Ending(Enum):
    WHOLE = "whole"
    """The frame's data is the whole answer."""
    RETRY = "retry"
    """The frame's data is an error; another replica may succeed."""
    FINAL = "final"
    """The frame's data is an error for the client."""


class Ended(NamedTuple):
    """The end of a response. Attributes: status: HTTP status for the frame's data."""

    ending: Ending
    status: int


@dataclass(slots=True)
class Choice:
    """State of a choice. Attributes: tokens: `ID,ID,...`. seed: decimal. finish_reason: None: not complete."""

    tokens: bytearray = field(default_factory=bytearray)
    seed: bytes | None = None
    finish_reason: bytes | None = None


class Answer:
    """State of an answer.

    Attributes:
        usage: None: not reported.
        has_tokens: any choice has a token, or is complete without one.
        advanced: the current attempt has added a token or completed a choice.
    """

    __slots__ = ("_choices", "advanced", "has_tokens", "usage")

    def __init__(self) -> None:
        self._choices: dict[int, Choice] = {}
        self.usage: Usage | None = None
        self.has_tokens = self.advanced = False

    def begin_attempt(self) -> None:
        self.advanced = False

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all choices."""
        return sum(choice.tokens.count(b",") + 1 for choice in self._choices.values() if choice.tokens)

    def all_finished(self, body: bytes) -> bool:
        """Returns whether each choice that `body` asks for is complete."""
        finished = sum(choice.finish_reason is not None for choice in self._choices.values())
        return finished > 0 and finished == num_choices(body)

    def take(self, notes: Iterable[bytes]) -> Ended | None:
        """Apply the notes of one frame. Returns their information on the end of the response.

        Raises:
            ValueError: the notes violate the protocol. Notes of an unknown kind are skipped.
        """
        ended = None
        for note in notes:
            kind = note[:2]
            if kind == b"t ":
                index, _, ids = note[2:].partition(b" ")
                if not ids:
                    raise ValueError("no token ids")
                tokens = self._choice(index).tokens
                if tokens:
                    tokens += b","
                tokens += ids
                self.has_tokens = self.advanced = True
            elif kind == b"f ":
                index, _, reason = note[2:].partition(b" ")
                self._choice(index).finish_reason = reason
                self.has_tokens = self.advanced = True
            elif kind == b"s ":
                index, _, seed = note[2:].partition(b" ")
                self._choice(index).seed = b"%d" % int(seed)
            elif kind == b"u ":
                self.usage = msgspec.json.decode(note[2:], type=Usage)
            elif kind == b"w ":
                ended = Ended(Ending.WHOLE, int(note[2:]))
            elif kind == b"e ":
                status, _, ending = note[2:].partition(b" ")
                ended = Ended(Ending(ending.decode()), int(status))
        return ended

    def _choice(self, index: bytes) -> Choice:
        number = int(index)
        choice = self._choices.get(number)
        if choice is None:
            if number < 0:
                raise ValueError("the index of a choice is negative")
            choice = self._choices[number] = Choice()
        return choice

    def continued(self, body: bytes, created: int) -> bytes:
        """Returns `body`, the JSON object of the request, with the field that makes the engine continue after these
        tokens.

        Args:
            created: UNIX seconds already sent to the client.

        Raises:
            ValueError: a token id is no number.
        """
        number = max(num_choices(body), max(self._choices, default=0) + 1)
        choices = [_continued(self._choices.get(index, _NOTHING)) for index in range(number)]
        field = b'{"choices":[%b],"created":%d}' % (b",".join(choices), created)
        opened = body.rstrip().removesuffix(b"}")
        return b'%b,"inflight_continuation":%b}' % (opened, field)


_NOTHING = Choice()


def _continued(choice: Choice) -> bytes:
    tokens = bytes(choice.tokens)
    if tokens.strip(b"0123456789,"):
        raise ValueError("a token id is not a number")
    reason = msgspec.json.encode(None if choice.finish_reason is None else choice.finish_reason.decode())
    return b'{"token_ids":[%b],"seed":%b,"finish_reason":%b}' % (tokens, choice.seed or b"null", reason)


class _Choices(msgspec.Struct):
    """Fields of a request that decide how many choices it has; others, possibly of megabytes, are skipped."""

    n: int | None = None
    prompt: msgspec.Raw = msgspec.Raw()


_choices = msgspec.json.Decoder(_Choices, strict=False)
_SEVERAL = re.compile(rb'\[\s*["\[]')


def num_choices(body: bytes) -> int:
    """Returns the choices that a request asks for, which an engine accepted: `n` for each of its prompts."""
    fields = _choices.decode(body)
    several = _SEVERAL.match(fields.prompt)
    return (fields.n or 1) * (len(msgspec.json.decode(fields.prompt, type=list[msgspec.Raw])) if several else 1)

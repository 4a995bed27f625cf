"""State of a response so far, per choice, from an engine's progress frames: enough to continue it elsewhere.

Token ids stay text: they come as `1,2,3` and go into a JSON list as they are, so that a token costs a few bytes of
memory and no conversion.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from inflight_contract.kv_blocks import MOST_SOURCE_BYTES
from inflight_gateway.types import MOST_NAMED, NAME_BYTES, PromptBlocks

MAX_TOKENS = 2**20
"""Most tokens of a choice whose request sets no smaller number: more than any context."""

_MAX_NUMBER_BYTES = 20
"""Longest seed, in decimal digits."""

_MAX_REASON_BYTES = 64

_MAX_NAMES_BYTES = (MOST_NAMED * NAME_BYTES + 2) // 3 * 4
"""Longest names of a prompt's blocks, in base64."""

_SOURCE = re.compile(rb"[ !#-\[\]-~]{1,%d}" % MOST_SOURCE_BYTES)
"""Characters that a JSON string can have as they are."""

_LARGEST = 2**31 - 1
"""Largest number of tokens that is read."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32)]
"""Tokens of an answer as an engine tells them. Sums over all requests of a tenant must fit 64 bits."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of the whole answer, continuations included."""

    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    completion_tokens: Count = 0


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
    """State of a choice. Attributes: tokens: `ID,ID,...`. count: their number. seed: decimal. finish_reason: None: not
    complete."""

    tokens: bytearray = field(default_factory=bytearray)
    count: int = 0
    seed: bytes | None = None
    finish_reason: bytes | None = None


class Answer:
    """State of an answer.

    Args:
        num_choices: choices that the request asks for. max_tokens: most tokens of each; None: it does not say.

    Attributes:
        usage: None: not reported.
        blocks: of the prompt, until their reader removes them; None: the engine did not tell them.
        drains: the engine of the current attempt has said so, or that it hands over, until the reader takes note.
        source: name by which the latest engine that drained, or handed the answer over, lets others read its keys and
            values; None: none did.
        cached: prompt tokens that this engine had in its prefix cache; None: it did not say.
        continues: False: the ids of some of its tokens are not known, so that no engine can go on.
        has_tokens: any choice has a token, or is complete without one.
        advanced: the current attempt has added a token or completed a choice.
        size: bytes of the token ids.
    """

    __slots__ = (
        "_choices",
        "_max_tokens",
        "_num_choices",
        "advanced",
        "blocks",
        "cached",
        "continues",
        "drains",
        "has_tokens",
        "size",
        "source",
        "usage",
    )

    def __init__(self, num_choices: int = 1, max_tokens: int | None = None) -> None:
        self._num_choices = num_choices
        self._max_tokens = min(max_tokens or MAX_TOKENS, MAX_TOKENS)
        self._choices: dict[int, Choice] = {}
        self.usage: Usage | None = None
        self.blocks: PromptBlocks | None = None
        self.source: bytes | None = None
        self.cached: int | None = None
        self.has_tokens = self.advanced = self.drains = False
        self.continues = True
        self.size = 0

    def begin_attempt(self) -> None:
        """Begins an attempt, which continues the tokens so far, or starts from scratch if there are none."""
        self.advanced = self.drains = False
        if not self.has_tokens:
            self._choices.clear()

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all choices."""
        return sum(choice.count for choice in self._choices.values())

    @property
    def all_finished(self) -> bool:
        """True if each choice that the request asks for is complete."""
        finished = sum(choice.finish_reason is not None for choice in self._choices.values())
        return finished == self._num_choices

    @property
    def token_ids(self) -> bytes:
        """Ids of the first choice's tokens."""
        return bytes(self._choices[0].tokens) if 0 in self._choices else b""

    def drop_last(self) -> None:
        """Removes the last token of the first choice, whose text the client does not have."""
        choice = self._choices[0]
        del choice.tokens[max(0, choice.tokens.rfind(b",")) :]
        choice.count -= 1

    def forget_source(self) -> bool:
        """Goes on without keys and values of another engine; returns whether there was one."""
        had, self.source, self.cached = self.source is not None, None, None
        return had

    def take(self, notes: Iterable[bytes]) -> Ended | None:
        """Apply the notes of one frame. Returns their information on the end of the response.

        Raises:
            ValueError: the notes violate the protocol, or exceed the request. Notes of an unknown kind are skipped.
        """
        ended = None
        for note in notes:
            kind = note[:2]
            if kind == b"t ":
                index, _, ids = note[2:].partition(b" ")
                if not ids:
                    raise ValueError("no token ids")
                choice = self._choice(index)
                tokens = choice.tokens
                choice.count += ids.count(b",") + 1
                if choice.count > self._max_tokens:
                    raise ValueError("more tokens than the request allows")
                if tokens:
                    tokens += b","
                tokens += ids
                self.size += len(ids) + 1
                self.has_tokens = self.advanced = True
            elif kind == b"f ":
                index, _, reason = note[2:].partition(b" ")
                if len(reason) > _MAX_REASON_BYTES:
                    raise ValueError("a long finish reason")
                self._choice(index).finish_reason = reason
                self.has_tokens = self.advanced = True
            elif kind == b"x ":
                self.continues = False
                self.has_tokens = self.advanced = True
            elif kind == b"s ":
                index, _, seed = note[2:].partition(b" ")
                if len(seed) > _MAX_NUMBER_BYTES:
                    raise ValueError("a long seed")
                self._choice(index).seed = b"%d" % int(seed)
            elif kind == b"u ":
                self.usage = msgspec.json.decode(note[2:], type=Usage)
            elif kind == b"b ":
                self.blocks = _blocks(note[2:])
            elif kind == b"c ":
                self.cached = _count(note[2:])
            elif kind == b"d ":
                if not _SOURCE.fullmatch(note[2:]):
                    raise ValueError("no name of a source")
                self.source, self.drains = note[2:], True
            elif kind == b"w ":
                ended = Ended(Ending.WHOLE, _status(note[2:]))
            elif kind == b"e ":
                status, _, ending = note[2:].partition(b" ")
                ended = Ended(Ending(ending.decode()), _status(status))
        return ended

    def token(self, index: bytes, token: bytes) -> bool:
        """Applies `:t INDEX TOKEN`, two numbers, as `take` does; returns False, and changes nothing, where that has to
        look: at the first token of a choice or of an attempt, at a bound, and now and then."""
        choice = self._choices.get(int(index))
        if choice is None or not choice.count or not self.advanced:
            return False
        count = choice.count + 1
        if count > self._max_tokens or not count % _LOOK_EVERY:
            return False
        choice.count = count
        choice.tokens += b"," + token
        self.size += len(token) + 1
        return True

    def _choice(self, index: bytes) -> Choice:
        number = int(index)
        choice = self._choices.get(number)
        if choice is None:
            if not 0 <= number < self._num_choices:
                raise ValueError("a choice that the request does not ask for")
            choice = self._choices[number] = Choice()
        return choice

    def continued(self, body: bytes, created: int, events: int | None = None) -> bytes:
        """Returns `body`, the JSON object of the request, with the field that makes the engine continue after these
        tokens.

        Args:
            created: UNIX seconds already sent to the client.
            events: number of them that it has, where each has its number; None: they have none.

        Raises:
            ValueError: a token id is no number.
        """
        choices = [_continued(self._choices.get(index, _NOTHING)) for index in range(self._num_choices)]
        more = b"" if events is None else b',"sequence_number":%d' % events
        if self.source is not None:
            more += b',"source":"%b"' % self.source
        if self.cached is not None:
            more += b',"cached_tokens":%d' % self.cached
        field = b'{"choices":[%b],"created":%d%b}' % (b",".join(choices), created, more)
        opened = body.rstrip().removesuffix(b"}")
        return b'%b,"inflight_continuation":%b}' % (opened, field)


_LOOK_EVERY = 256
"""Tokens of a choice of which one is applied by `take`, so that the memory of a long answer is counted."""

_NOTHING = Choice()


def _continued(choice: Choice) -> bytes:
    tokens = bytes(choice.tokens)
    if tokens.strip(b"0123456789,"):
        raise ValueError("a token id is not a number")
    reason = msgspec.json.encode(None if choice.finish_reason is None else choice.finish_reason.decode())
    return b'{"token_ids":[%b],"seed":%b,"finish_reason":%b}' % (tokens, choice.seed or b"null", reason)


def _blocks(text: bytes) -> PromptBlocks:
    size, tokens, names = text.split(b" ")
    if len(names) > _MAX_NAMES_BYTES:
        raise ValueError("too many blocks")
    blocks = PromptBlocks(_number(size), _number(tokens), b64decode(names, validate=True))
    if (
        not blocks.names
        or len(blocks.names) % NAME_BYTES
        or blocks.size * len(blocks.names) > blocks.tokens * NAME_BYTES
    ):
        raise ValueError("no blocks of the prompt")
    return blocks


def _number(text: bytes) -> int:
    number = _count(text)
    if not number:
        raise ValueError("no number of tokens")
    return number


def _count(text: bytes) -> int:
    number = int(text)
    if not 0 <= number <= _LARGEST:
        raise ValueError("no number of tokens")
    return number


def _status(text: bytes) -> int:
    status = int(text)
    if not 200 <= status < 600:
        raise ValueError("no status of a response")
    return status

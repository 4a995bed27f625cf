"""From token ids to text, a few at a time, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Protocol

REPLACEMENT = "�"

_CONTEXT = 6
"""Tokens before a token that suffice to decode it, as in text-generation-inference and vLLM."""


class IncrementalDetokenizer(Protocol):
    """Turns one request's tokens into text as they come. All text pushed out, joined, is the text of all tokens."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that these tokens complete; a character whose bytes are not all there yet is held back."""

    def flush(self) -> str:
        """Return the text that was held back: the answer ended inside a character, which becomes U+FFFD."""


class ByteDetokenizer:
    """Detokenizer of byte-level vocabularies: each token is some bytes, whatever stands before it.

    Args:
        token_bytes: the bytes of a token id; empty for special tokens.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._held_back = b""

    def push(self, token_ids: Sequence[int]) -> str:
        # The incremental decoder of `codecs` does the same in Python, several times slower.
        data = self._held_back + b"".join(map(self._token_bytes, token_ids))
        text, end = codecs.utf_8_decode(data, "replace", False)
        self._held_back = data[end:]
        return text

    def flush(self) -> str:
        text, self._held_back = self._held_back.decode(errors="replace"), b""
        return text


class WindowDetokenizer:
    """Detokenizer of vocabularies where a token's text depends on its neighbours (SentencePiece's spaces).

    Decodes a short window of tokens twice, without and with the added ones; the difference is their text. The method is
    the one of text-generation-inference and vLLM. Byte tokens (SentencePiece's byte fallback) are decoded as UTF-8
    instead: the tokenizers library makes a whole run of them U+FFFD while its last character is not complete.

    Args:
        decode: text of a list of token ids.
        byte_of: the byte that a token id stands for, None for other tokens.
        has_text: False for tokens that `decode` skips wherever they stand, special ones among them.
        context: tokens before the answer; without them the answer's first space would be lost.
        spelled: text of special tokens that have one, whatever stands beside them.
    """

    _MOST_HELD_BACK = 8
    """A character has at most four bytes. More tokens than that without a whole character are not text, and waiting
    longer would let the window grow without end."""

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        byte_of: Callable[[int], int | None] = lambda _: None,
        has_text: Callable[[int], bool] = lambda _: True,
        context: Sequence[int] = (),
        spelled: Mapping[int, str] | None = None,
    ) -> None:
        self._decode = decode
        self._byte_of = byte_of
        self._has_text = has_text
        self._spelled = spelled or {}
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._window = list(filter(has_text, context[-_CONTEXT:]))
        self._num_emitted = len(self._window)

    def push(self, token_ids: Sequence[int]) -> str:
        if self._spelled.keys().isdisjoint(token_ids):
            return self._push(token_ids)
        pieces = []
        for token_id in token_ids:
            name = self._spelled.get(token_id)
            pieces.append(self._push((token_id,)) if name is None else self.flush() + name)
        return "".join(pieces)

    def _push(self, token_ids: Sequence[int]) -> str:
        pieces = []
        for are_bytes, group in groupby(filter(self._has_text, token_ids), lambda id_: self._byte_of(id_) is not None):
            run = [*group]
            pieces.append(self._push_bytes(run) if are_bytes else self._end_bytes() + self._push_words(run))
        return "".join(pieces)

    def flush(self) -> str:
        text = self._end_bytes() + self._new_text(len(self._window))
        self._num_emitted = len(self._window)
        return text

    def _push_bytes(self, token_ids: list[int]) -> str:
        words = self._new_text(len(self._window))
        self._window = (self._window + token_ids)[-_CONTEXT:]
        self._num_emitted = len(self._window)
        return words + self._bytes.decode(bytes(byte for byte in map(self._byte_of, token_ids) if byte is not None))

    def _end_bytes(self) -> str:
        """Return the text of a character that another token cuts off."""
        text = self._bytes.decode(b"", final=True)
        self._bytes.reset()
        return text

    def _push_words(self, token_ids: list[int]) -> str:
        self._window.extend(token_ids)
        end = len(self._window)
        text = self._new_text(end)
        if text.endswith(REPLACEMENT):
            end, text = self._up_to_whole_character(end, text)
        if text:
            self._window = self._window[self._num_emitted :]
            self._num_emitted = end - self._num_emitted
        elif end == len(self._window):
            # What never has text need not stay in the window. A first space has none either, but a second one brings
            # it back.
            self._window[self._num_emitted :] = [
                token for token in self._window[self._num_emitted :] if self._decode([token, token])
            ]
        return text

    def _up_to_whole_character(self, end: int, text: str) -> tuple[int, str]:
        """Return the end of the last whole character and the text until there; `end` and `text` if that is too far
        back."""
        for shorter in range(end - 1, max(self._num_emitted, end - self._MOST_HELD_BACK) - 1, -1):
            whole = self._new_text(shorter)
            if not whole.endswith(REPLACEMENT):
                return shorter, whole
        return end, text

    def _new_text(self, end: int) -> str:
        """Return the text of the tokens of the window that are not emitted, up to `end`."""
        before = self._decode(self._window[: self._num_emitted])
        return self._decode(self._window[:end])[len(before) :]

"""From token ids to text, a few at a time, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

REPLACEMENT = "�"


class IncrementalDetokenizer(Protocol):
    """Turns one request's tokens into text as they come. All text pushed out, joined, is the text of all tokens."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; a character whose bytes are not all there yet is held back."""

    def flush(self) -> str:
        """What was held back: the answer ended inside a character, which becomes U+FFFD."""


class ByteDetokenizer:
    """For byte-level vocabularies: each token is some bytes, whatever stands before it.

    Args:
        token_bytes: the bytes of a token id; empty for special tokens.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(map(self._token_bytes, token_ids)))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For vocabularies where a token's text depends on its neighbours (SentencePiece spaces, byte fallback).

    Decodes a short window of tokens twice, without and with the new ones; the difference is the new text. The method
    is the one of text-generation-inference and vLLM.

    Args:
        decode: text of a list of token ids, special tokens skipped.
        context: tokens before the answer; without them the answer's first space would be lost.
    """

    _MOST_HELD_BACK = 8
    """A character has at most four bytes. More tokens than that without a whole character are not text, and waiting
    longer would let the window grow without end."""

    def __init__(self, decode: Callable[[list[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(context[-6:])
        self._num_emitted = len(self._window)

    def push(self, token_ids: Sequence[int]) -> str:
        self._window.extend(token_ids)
        text = self._new_text()
        if text.endswith(REPLACEMENT) and len(self._window) - self._num_emitted <= self._MOST_HELD_BACK:
            return ""
        if text:
            self._window = self._window[self._num_emitted :]
            self._num_emitted = len(self._window)
        else:
            # Special tokens change no text, so the window need not grow by them. A first space has no text either, but
            # a second one brings it back.
            self._window[self._num_emitted :] = [
                token for token in self._window[self._num_emitted :] if self._decode([token, token])
            ]
        return text

    def flush(self) -> str:
        text = self._new_text()
        self._num_emitted = len(self._window)
        return text

    def _new_text(self) -> str:
        before = self._decode(self._window[: self._num_emitted])
        return self._decode(self._window)[len(before) :]

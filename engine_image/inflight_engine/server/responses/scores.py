"""Log-probabilities of the tokens of a response's text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from inflight_engine.formats.events import TextEvent
from inflight_engine.server.answers.logprobs import TokenBytes, chat_logprobs
from inflight_engine.server.requests.choice_text import Piece, ScoredToken
from inflight_engine.server.requests.generation import GenerationRequest

Scores: TypeAlias = list[dict[str, Any]]
"""Entries of `logprobs`."""


class TextScores:
    """Finds the tokens of each part of an answer's text, among those of its reasoning and tool calls.

    A parser gives text as the model wrote it, less white space and marks, so the tokens of a part are those that spell
    it. Special tokens are marks.
    """

    def __init__(self, request: GenerationRequest, token_bytes: TokenBytes) -> None:
        self._parsed = request.parsing is not None
        self._marks = request.shown_ids if self._parsed else frozenset()
        self._token_bytes = token_bytes
        self._untold: list[ScoredToken] = []
        """Tokens of no part so far: their text may be held back."""

    def of(self, piece: Piece) -> Iterator[Scores]:
        """The entries of `logprobs` for each text of the piece that is not empty."""
        self._untold += (token for token in piece.tokens if token.token_id not in self._marks)
        if not self._parsed:
            if piece.text:
                yield self._written(self._untold)
                self._untold = []
            return
        for event in piece.events:
            if isinstance(event, TextEvent) and event.text:
                tokens = self._spelling(event.text.encode(), last=event is piece.events[-1])
                if event.kind == "content":
                    yield self._written(tokens)

    def _spelling(self, text: bytes, *, last: bool) -> Sequence[ScoredToken]:
        """The tokens that spell a text, which are told now, with all before them; none: no tokens do.

        Args:
            last: nothing of this piece follows it, so it is at the end of what the tokens spell.
        """
        untold = self._untold
        spelled = [self._token_bytes(token.token_id) for token in untold]
        whole = b"".join(spelled)
        begin = whole.rfind(text) if last else whole.find(text)
        if begin < 0:
            self._untold = []
            return []
        ends = [*accumulate(map(len, spelled))]
        first, after = bisect_right(ends, begin), bisect_left(ends, begin + len(text)) + 1
        self._untold = untold[after:]
        return untold[first:after]

    def _written(self, tokens: Sequence[ScoredToken]) -> Scores:
        entries: Scores = chat_logprobs(tokens, self._token_bytes)["content"]
        return entries

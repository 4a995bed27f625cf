"""Log-probabilities of the tokens of a response's text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
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
        self._rest = b""
        """The end of the token before these that no part has."""

    def of(self, piece: Piece) -> list[Scores]:
        """The entries of `logprobs` for each text of the piece that is not empty."""
        self._untold += (token for token in piece.tokens if token.token_id not in self._marks)
        if not self._parsed:
            if not piece.text:
                return []
            told, self._untold = self._untold, []
            return [self._written(told)]
        parts = [event for event in piece.events if isinstance(event, TextEvent) and event.text]
        spelled = self._spelling([each.text.encode() for each in parts], last=parts[-1:] == [*piece.events[-1:]])
        return [self._written(each) for part, each in zip(parts, spelled, strict=True) if part.kind == "content"]

    def _spelling(self, texts: Sequence[bytes], *, last: bool) -> list[list[ScoredToken]]:
        """The tokens that spell each text, which are told now, with all before them; none: no tokens do.

        Args:
            last: nothing of this piece follows the last one, so it is near the end of what the tokens spell.
        """
        if not texts:
            return []
        untold, found = self._untold, list[list[ScoredToken]]()
        bounds = [*accumulate((len(self._token_bytes(token.token_id)) for token in untold), initial=len(self._rest))]
        whole = self._rest + b"".join(self._token_bytes(token.token_id) for token in untold)
        at = told = 0
        for number, text in enumerate(texts, 1):
            # Mostly no mark comes before it; what is held back behind it, as the beginning of one, may spell it again.
            at_end = last and number == len(texts) and not whole.startswith(text, at)
            begin = whole.rfind(text, at) if at_end else whole.find(text, at)
            if begin < 0:
                found.append([])
                at, told = len(whole), len(untold)
                continue
            at = begin + len(text)
            first, told = max(told, bisect_right(bounds, begin) - 1), max(told, bisect_left(bounds, at))
            found.append(untold[first:told])
        self._rest, self._untold = whole[at : bounds[told]], untold[told:]
        return found

    def _written(self, tokens: Sequence[ScoredToken]) -> Scores:
        entries: Scores = chat_logprobs(tokens, self._token_bytes)["content"]
        return entries

"""Log-probabilities of the tokens of a response's text."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import Any, TypeAlias

from inflight_engine.formats.events import TextEvent
from inflight_engine.server.answers.logprobs import TokenBytes, chat_logprobs
from inflight_engine.server.requests.choice_text import Piece, ScoredToken
from inflight_engine.server.requests.generation import GenerationRequest

Scores: TypeAlias = list[dict[str, Any]]
"""Entries of `logprobs`."""

_offset = attrgetter("offset")


class TextScores:
    """Finds the tokens of each part of an answer's text, among those of its reasoning and tool calls, by their
    places."""

    def __init__(self, request: GenerationRequest, token_bytes: TokenBytes) -> None:
        self._parsed = request.parsing is not None
        self._token_bytes = token_bytes
        self._untold: list[ScoredToken] = []
        """Tokens of no part so far: their text may be held back."""

    def of(self, piece: Piece) -> list[Scores]:
        """The entries of `logprobs` for each text of the piece that is not empty."""
        self._untold += piece.tokens
        if not self._parsed:
            if not piece.text:
                return []
            told, self._untold = self._untold, []
            return [self._written(told)]
        parts = [event for event in piece.events if isinstance(event, TextEvent) and event.text]
        spelled = [(part, self._tell(part.at, part.at + len(part.text))) for part in parts]
        return [self._written(tokens) for part, tokens in spelled if part.kind == "content"]

    def _tell(self, begin: int, end: int) -> list[ScoredToken]:
        """Take the tokens of these characters of the text, and drop those before them."""
        untold = self._untold
        first = bisect_left(untold, begin, key=_offset)
        if first and (first == len(untold) or untold[first].offset > begin):
            first -= 1  # begins before them, with white space or a mark
        after = bisect_left(untold, end, first, key=_offset)
        self._untold = untold[after:]
        return untold[first:after]

    def _written(self, tokens: list[ScoredToken]) -> Scores:
        entries: Scores = chat_logprobs(tokens, self._token_bytes)["content"]
        return entries

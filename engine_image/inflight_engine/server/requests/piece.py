"""Parts of a choice, for the writer of its response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inflight_engine.output import TokenLogprobs
from inflight_engine.server.requests.prompt_scores import PromptScores


class ScoredToken(NamedTuple):
    """A token of the text with its log-probabilities. `offset`: characters of the text before it."""

    token_id: int
    offset: int
    logprobs: TokenLogprobs


class Piece(NamedTuple):
    """A part of a choice.

    Attributes:
        tokens: those whose text begins in this part, where log-probabilities were asked for.
        prompt: in the first part, where log-probabilities of the prompt were asked for.
        num_tokens: of the answer, up to this part: the text of the last ones may come with a later part.
        logprobs: of the tokens without log-probabilities in an earlier part, if requested.
    """

    text: str
    tokens: list[ScoredToken]
    prompt: PromptScores | None = None
    num_tokens: int = 0
    logprobs: Sequence[TokenLogprobs] = ()

    @property
    def num_scored(self) -> int:
        """Tokens with log-probabilities."""
        return len(self.tokens) + (0 if self.prompt is None else len(self.prompt))

    @property
    def empty(self) -> bool:
        return not (self.text or self.num_scored)


NO_PIECE = Piece("", [])

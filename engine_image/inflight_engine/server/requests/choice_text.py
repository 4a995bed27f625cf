"""Text of one choice: decoded from its tokens, searched for stop strings, and released when it may be sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inflight_engine.formats.events import Event
from inflight_engine.formats.parser import AnswerParser, Parsing
from inflight_engine.models.tokens.detokenizer import IncrementalDetokenizer
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
        events: the text, where tool calls or reasoning are parsed out of it.
    """

    text: str
    tokens: list[ScoredToken]
    prompt: PromptScores | None = None
    num_tokens: int = 0
    logprobs: Sequence[TokenLogprobs] = ()
    events: Sequence[Event] = ()

    @property
    def num_scored(self) -> int:
        """Tokens with log-probabilities."""
        return len(self.tokens) + (0 if self.prompt is None else len(self.prompt))

    @property
    def empty(self) -> bool:
        return not (self.text or self.events or self.num_scored)


NO_PIECE = Piece("", [])


class ChoiceText:
    """Text that was not taken yet, and tokens whose log-probabilities wait for their text.

    Args:
        stop: stop strings; the text ends before the first one.
        stop_token_ids: have no text.
        with_stop: the stop string that ends the text is part of it.
        min_tokens: the text of so many first tokens is not searched for stop strings.
        echo: the prompt's text, with which the choice begins.
        parsing: of its text; None: it stays text.
    """

    __slots__ = (
        "_decoded",
        "_detokenizer",
        "_events",
        "_min_tokens",
        "_num_decoded",
        "_parser",
        "_released",
        "_stop",
        "_stop_token_ids",
        "_texts",
        "_untaken",
    )

    def __init__(
        self,
        detokenizer: IncrementalDetokenizer,
        stop: tuple[str, ...],
        stop_token_ids: frozenset[int],
        min_tokens: int,
        echo: str,
        parsing: Parsing | None = None,
        *,
        with_stop: bool = False,
    ) -> None:
        self._detokenizer = detokenizer
        self._stop = StopStrings(stop, included=with_stop)
        self._stop_token_ids = stop_token_ids
        self._min_tokens = min_tokens
        self._texts = [echo]
        # Number of decoded tokens.
        self._num_decoded = 0
        # Characters of the text: decoded, and of them not held back as a possible stop string.
        self._decoded = self._released = len(echo)
        self._untaken: list[ScoredToken] = []
        self._parser = None if parsing is None else AnswerParser(parsing)
        self._events: list[Event] = []

    @property
    def calls(self) -> int:
        """How many tool calls began in the text."""
        return 0 if self._parser is None else self._parser.calls

    @property
    def stopped(self) -> str:
        """The stop string that is complete: no more text follows; empty: none is."""
        return self._stop.found

    @property
    def holds_back(self) -> bool:
        """Log-probabilities are waiting for the text of their tokens."""
        return bool(self._untaken) and self._untaken[-1].offset >= self._released

    def score(self, token_id: int, logprobs: TokenLogprobs) -> None:
        """Log-probabilities of the next token, which is not decoded yet."""
        self._untaken.append(ScoredToken(token_id, self._decoded, logprobs))

    def decode(self, token_ids: Sequence[int]) -> None:
        """`token_ids`: all of the choice so far; those that were not decoded yet are."""
        if self._stop.found or self._num_decoded == len(token_ids):
            return
        new = token_ids[self._num_decoded :]
        self._num_decoded = len(token_ids)
        if not self._stop_token_ids.isdisjoint(new):
            new = [token_id for token_id in new if token_id not in self._stop_token_ids]
        decoded = self._detokenizer.push(new)
        self._decoded += len(decoded)
        self._release(decoded if len(token_ids) <= self._min_tokens else self._stop.push(decoded))

    def take(self, *, done: bool) -> tuple[str, list[ScoredToken]]:
        """Text that may be sent now and was not taken before, and the scored tokens whose text begins in it; all of the
        rest when the choice is done."""
        all_out = done and not self._stop.found
        if all_out:
            self._release(self._stop.push(self._detokenizer.flush()))
            self._release(self._stop.flush())
        texts, self._texts = self._texts, []
        return "".join(texts), self._take_tokens(all_out=all_out) if self._untaken else []

    def take_events(self, *, done: bool) -> list[Event]:
        """Events of the text that was taken; all of the rest when the choice is done."""
        events, self._events = self._events, []
        if done and self._parser is not None:
            events += self._parser.finish()
        return events

    def _take_tokens(self, *, all_out: bool) -> list[ScoredToken]:
        """Take the tokens whose text was released. Tokens of a stop string, and any after it, are never taken."""
        count = len(self._untaken)
        while not all_out and count and self._untaken[count - 1].offset >= self._released:
            count -= 1
        taken, self._untaken = self._untaken[:count], self._untaken[count:]
        return taken

    def _release(self, text: str) -> None:
        if self._parser is None:
            self._texts.append(text)
        else:
            self._events += self._parser.feed(text)
        self._released += len(text)


class StopStrings:
    """Finds the earliest stop string in a growing text.

    Text that is the beginning of a stop string is held back until the next piece shows whether it becomes one, so the
    text let out never contains any part of the stop string (OpenAI: "the returned text will not contain the stop
    sequence"), however the text was cut into pieces.

    Args:
        stops: non-empty strings; with none of them every piece passes unchanged.
        included: the stop string is let out with the text before it.

    Attributes:
        found: the stop string that ended the text; empty: none did.
    """

    __slots__ = ("_held", "_included", "_stops", "found")

    def __init__(self, stops: tuple[str, ...], *, included: bool = False) -> None:
        self._stops = stops
        self._included = included
        self._held = ""
        self.found = ""

    def push(self, piece: str) -> str:
        """The part of the text that may be released now. After a stop string is found no more is released."""
        if self.found:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        start, self.found = _earliest(text, self._stops)
        if self.found:
            self._held = ""
            return text[: start + len(self.found) if self._included else start]
        keep = _possible_start(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back, when no more text arrives."""
        held, self._held = self._held, ""
        return held


def _earliest(text: str, stops: tuple[str, ...]) -> tuple[int, str]:
    """Index of the first stop string in `text`, and the string; an empty one: there is none.

    The one that ends first wins, since it is the first to be complete as text arrives; of two that end together the
    longer one, since it begins first.
    """
    best_end, best_start, best = len(text) + 1, -1, ""
    for stop in stops:
        start = text.find(stop)
        if start >= 0 and (start + len(stop), start) < (best_end, best_start):
            best_end, best_start, best = start + len(stop), start, stop
    return best_start, best


def _possible_start(text: str, stops: tuple[str, ...]) -> int:
    """Length of the longest end of `text` with which a stop string begins."""
    for length in range(min(len(text), max(map(len, stops)) - 1), 0, -1):
        if any(len(stop) > length and text.endswith(stop[:length]) for stop in stops):
            return length
    return 0

"""A request in the API process: its tokens and times, and notification of the client's writer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from inflight_contract.errors import ApiError
from inflight_contract.kv_blocks import KVSource
from inflight_engine.formats.parser import Parsing
from inflight_engine.grammars.thinking import reasoning_tokens
from inflight_engine.models.tokens.detokenizer import IncrementalDetokenizer
from inflight_engine.output import PromptLogprobs, TokenLogprobs
from inflight_engine.request import FinishReason, SamplingParams, Scheduling, Thinking
from inflight_engine.server.requests.choice_text import NO_PIECE, ChoiceText, Piece
from inflight_engine.server.requests.inbox import Inbox
from inflight_engine.server.requests.phases import MAX_PREEMPTIONS, Preempted, RequestPhase, Timings, check_move
from inflight_engine.server.requests.prompt_scores import PromptScores


@dataclass(frozen=True, slots=True)
class Earlier:
    """The part of a continued response that another replica computed.

    Attributes:
        finish_reason: None: the response continues.
        written: the client has received the text of these tokens; else none of it.
    """

    token_ids: Sequence[int]
    finish_reason: FinishReason | None
    written: bool


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A requested choice, validated and tokenized.

    Attributes:
        index: place of the choice in the call.
        stop: stop strings, found here; stop token ids are in `sampling` and found by the engine.
        stop_reasons: stop token ids of the client's own.
        kv_source: engine that may have its keys and values; None: none is known.
        with_stop: the stop string or token that ends the text is part of it.
        streaming: tokens are delivered as they arrive, not at the end.
        relayed: a relay reads its progress, and can continue it at another replica.
        seed_drawn: its seed was drawn here, and the output depends on it.
        num_reported, end_reported: tokens that another replica reported to the relay, and whether it reported the end.
        earlier: the retained part of these; None: the response starts here.
        echo: the prompt's text, with which the answer begins; None: it does not.
        prompt_only: sampled tokens are not part of the response.
        parsing: how tool calls and reasoning are parsed out of the text; None: they are not.
        thinking: marks of the reasoning; None: the model has none.
        shown_ids: special tokens whose names are in the text.
        external_id: id of the HTTP request (X-Request-Id); shared by its choices.
    """

    request_id: int
    index: int
    prompt_token_ids: list[int]
    sampling: SamplingParams
    scheduling: Scheduling
    stop: tuple[str, ...]
    streaming: bool
    echo: str | None = None
    prompt_only: bool = False
    external_id: str = ""
    relayed: bool = False
    seed_drawn: bool = False
    num_reported: int = 0
    end_reported: bool = False
    earlier: Earlier | None = None
    parsing: Parsing | None = None
    thinking: Thinking | None = None
    shown_ids: frozenset[int] = frozenset()
    stop_reasons: frozenset[int] = frozenset()
    with_stop: bool = False
    kv_source: KVSource | None = None


class Generation:
    """State of one running request.

    The dispatcher of step reports calls `add_token` and `finish`, which notify the inbox; its reader then calls `take`.
    Text is decoded when it is taken, unless each token's position in it matters: with stop strings, which must be found
    in the step in which they appear, and with log-probabilities.

    Only unwritten log-probabilities (up to about 1.7 kB a token) are in memory: all of a non-streamed response, in a
    stream those of tokens whose text cannot be sent yet and those that arrived while its client did not read.
    `max_tokens` bounds both.
    """

    __slots__ = (
        "_inbox",
        "_min_tokens",
        "_placed",
        "_prompt_scores",
        "_stop_token_ids",
        "_streaming",
        "_text",
        "cached_tokens",
        "counted_tokens",
        "enqueued_at",
        "error",
        "finish_reason",
        "first_token_counted",
        "last_token_at",
        "later",
        "logprobs",
        "num_preemptions",
        "phase",
        "pooled",
        "preemptions",
        "replayed",
        "request",
        "scored",
        "slot",
        "timer",
        "timings",
        "token_ids",
        "tries",
        "wait_counted",
    )

    def __init__(
        self, request: GenerationRequest, detokenizer: IncrementalDetokenizer, arrived: float, inbox: Inbox
    ) -> None:
        self.request = request
        self.scored = request.sampling.logprobs is not None
        """The engine reports log-probabilities with its tokens."""
        self.tries = 0
        """Engine processes that died while it had a slot, or may have had one."""
        self.phase = RequestPhase.NEW
        """Only the registry moves it."""
        self.wait_counted = self.first_token_counted = False
        """Counted in the metrics, where a resubmitted request counts once."""
        self.cached_tokens = 0
        """Number of prompt tokens in the prefix cache when it was admitted first."""
        self.counted_tokens = 0
        """Number of `token_ids` that the estimate of output lengths has counted."""
        self.timings = Timings(arrived)
        self.preemptions: list[Preempted] = []
        """At most `MAX_PREEMPTIONS` of `num_preemptions`; the loss of its engine process counts as one of them."""
        self.num_preemptions = 0
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        """Log-probabilities of the latest `token_ids` that no piece was taken with; empty unless asked for."""
        self.pooled = b""
        """The hidden state of the last token of its prompt, float32; empty: not asked for, or not there yet."""
        self.finish_reason: FinishReason | None = None
        self.error: ApiError | None = None
        self.later: deque[Generation] | None = None
        """Generations of its call that are not in the queue yet, shared by all of the call: the next one enters
        when one leaves it for its first slot. None: there are none."""
        self.enqueued_at = arrived
        """Time of its entry into the queue: at first, or again for another engine process."""
        self.slot = -1
        """Its latest slot in the engine; -1: none yet."""
        self.last_token_at = -1.0
        """Time of the latest token."""
        self.timer: asyncio.TimerHandle | None = None
        """The timeout that runs: in the queue, then while it runs."""
        self.replayed = NO_PIECE
        """Output that another replica has written."""
        self._inbox = inbox
        self._streaming = request.streaming
        self._min_tokens = request.sampling.min_tokens
        self._stop_token_ids = frozenset(request.sampling.stop_token_ids)
        self._placed = self.scored or bool(request.stop)
        """The position of each token in the text matters."""
        self._text = ChoiceText(
            detokenizer,
            request.stop,
            frozenset() if request.with_stop else self._stop_token_ids,
            self._min_tokens,
            request.echo or "",
            request.parsing,
            with_stop=request.with_stop,
        )
        self._prompt_scores = self._no_prompt_scores()
        if request.earlier is not None:
            self._go_on(request.earlier)

    def move(self, phase: RequestPhase) -> None:
        """Move to the next phase.

        Raises:
            AssertionError: the phase cannot follow.
        """
        check_move(self.request.request_id, self.phase, phase)
        self.phase = phase

    def requeue(self, now: float) -> None:
        """Reset what its lost engine process computed and did not report: another one gets it, with its tokens so
        far."""
        if not self.token_ids:
            self.timings = Timings(self.timings.arrived)
            self.preemptions, self.num_preemptions = [], 0
            self.last_token_at = -1.0
            self._prompt_scores = self._no_prompt_scores()
        elif self.phase is RequestPhase.RUNNING:
            self.preempt(max(now, self.progress_at))
        self.slot = -1

    @property
    def done(self) -> bool:
        return self.finish_reason is not None

    @property
    def progress_at(self) -> float:
        """Time of its latest token; before the first one, of its entry into the queue."""
        return max(self.enqueued_at, self.last_token_at)

    @property
    def waiting(self) -> bool:
        """The request has to be admitted before it can continue."""
        return self.phase in (RequestPhase.QUEUED, RequestPhase.STARTING)

    @property
    def had_slot(self) -> bool:
        """The request has or had a slot in this engine process, as far as it is known."""
        return self.phase in (RequestPhase.STARTING, RequestPhase.RUNNING)

    @property
    def num_known_tokens(self) -> int:
        """Tokens of its prompt and output: the work of its prefill while it waits."""
        return len(self.request.prompt_token_ids) + len(self.token_ids)

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens inside of the reasoning. Walks over all tokens."""
        thinking = self.request.thinking
        return 0 if thinking is None else reasoning_tokens(self.token_ids, thinking)

    @property
    def written(self) -> bool:
        """Another replica has written its end."""
        earlier = self.request.earlier
        return earlier is not None and earlier.written and earlier.finish_reason is not None

    @property
    def called(self) -> bool:
        """The text has a tool call that the model chose."""
        parsing = self.request.parsing
        return parsing is not None and not parsing.named and self._text.calls > 0

    @property
    def stop_reason(self) -> int | str | None:
        """The stop string, or the token of the client's `stop_token_ids`, that ended it; None: something else did."""
        if self.finish_reason is not FinishReason.STOP:
            return None
        last = self.token_ids[-1] if self.token_ids else -1
        return self._text.stopped or (last if last in self.request.stop_reasons else None)

    @property
    def holds_back(self) -> bool:
        """Log-probabilities are waiting for the text of their tokens."""
        return self._text.holds_back

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival; None: no token arrived."""
        first = self.timings.first_token
        return None if first is None else first - self.timings.arrived

    @property
    def time_per_output_token(self) -> float | None:
        """Seconds for each token after the first, on average, of a finished request; None for fewer than two tokens."""
        first, finished, after_first = self.timings.first_token, self.timings.finished, len(self.token_ids) - 1
        return None if first is None or finished is None or after_first < 1 else (finished - first) / after_first

    def preempt(self, began: float) -> None:
        """Note a preemption in the step that started at that time."""
        self.num_preemptions += 1
        del self.preemptions[MAX_PREEMPTIONS - 1 :]
        self.preemptions.append(Preempted(began))

    def add_prompt_logprobs(self, report: PromptLogprobs) -> None:
        """Add log-probabilities of some prompt tokens."""
        if self._prompt_scores is not None:
            self._prompt_scores.add(report)

    def add_token(self, token_id: int, logprobs: TokenLogprobs | None) -> bool:
        """Add one sampled token. True if it completes a stop string: the engine has to stop the request."""
        if self.request.prompt_only:
            return False
        self.token_ids.append(token_id)
        if self._placed:
            if self.scored:
                self._score(token_id, logprobs)
            self._text.decode(self.token_ids)
        if self._streaming:
            self._inbox.put(self)
        return bool(self._text.stopped)

    def finish(self, reason: FinishReason, now: float, error: ApiError | None = None) -> None:
        """Finish the request; later events are ignored. `error`: for the client."""
        if self.done:
            return
        stopped_early = self.request.prompt_only and reason is FinishReason.STOP
        self.finish_reason = FinishReason.LENGTH if stopped_early else reason
        self.error = error
        self.timings.finished = now
        if self.timer is not None:
            self.timer.cancel()
        self._inbox.put(self)

    def take(self) -> Piece:
        """Output that may be sent now and was not taken before; all of the rest when it is done. Nothing before the
        first token, also not an echoed prompt: until then another engine process can restart it."""
        if not (self.token_ids or self.done):
            return NO_PIECE
        self._text.decode(self.token_ids)
        text, tokens = self._text.take(done=self.done)
        # A failed or aborted request may not have computed its whole prompt.
        prompt = self._prompt_scores if self.finish_reason in (None, FinishReason.STOP, FinishReason.LENGTH) else None
        self._prompt_scores = None
        events = self._text.take_events(done=self.done)
        piece = Piece(text, tokens, prompt, len(self.token_ids), events=events)
        if self.logprobs and (self.done or not piece.empty):
            piece, self.logprobs = piece._replace(logprobs=self.logprobs), []
        return piece

    def _go_on(self, earlier: Earlier) -> None:
        """Replay these tokens as if sampled here. Their log-probabilities are unknown."""
        # A stop string ends no answer before `min_tokens`, so the text of the first ones is not searched.
        for token_ids in (earlier.token_ids[: self._min_tokens], earlier.token_ids[self._min_tokens :]):
            self.token_ids += token_ids
            self._text.decode(self.token_ids)
        self.counted_tokens = len(self.token_ids)
        self.finish_reason = earlier.finish_reason or self._end_of_tokens()
        if earlier.written and (self.token_ids or self.done):
            text, _ = self._text.take(done=self.written)
            self.replayed = Piece(text, [], events=self._text.take_events(done=self.written))
            self._prompt_scores = None
        if self.done:
            self.timings.finished = self.timings.arrived
            if not self.written:
                self._inbox.put(self)

    def _score(self, token_id: int, logprobs: TokenLogprobs | None) -> None:
        if logprobs is None:
            raise AssertionError(f"request {self.request.request_id}: a token came without its log-probabilities")
        self.logprobs.append(logprobs)
        # Evaluation harnesses leave out the last entry of an echoed answer, as that of the token they must ask for.
        if token_id not in self._stop_token_ids or self.request.echo is not None or self.request.with_stop:
            self._text.score(token_id, logprobs)

    def _end_of_tokens(self) -> FinishReason | None:
        """Why no further token is possible; None: one is."""
        if self._text.stopped or (self.token_ids and self.token_ids[-1] in self._stop_token_ids):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.token_ids) >= self.request.sampling.max_tokens else None

    def _no_prompt_scores(self) -> PromptScores | None:
        if self.request.sampling.prompt_logprobs is None:
            return None
        return PromptScores(self.request.prompt_token_ids)

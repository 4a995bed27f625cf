"""Responses in OpenAI's JSON. Constant parts of a stream's chunks are encoded once."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from inflight_engine.formats.events import TextEvent
from inflight_engine.request import FinishReason
from inflight_engine.server.answers.events import CallIds, call_ids, delta, message
from inflight_engine.server.answers.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs, with_prompt
from inflight_engine.server.answers.writer import AnswerFormat
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.choice_text import Piece
from inflight_engine.server.requests.generation import Generation
from inflight_engine.server.requests.prompt_scores import PromptScores

if TYPE_CHECKING:
    from inflight_engine.models.tokens.tokenizer import Tokenizer  # imports the tokenizers library

_encode = msgspec.json.encode
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Shown:
    """Content of a response besides its text.

    Attributes:
        model: the served name.
        request_id: what its `id` is made of.
        fingerprint: of the model and how this server computes it.
        service_tier: the class of the request where it names one as OpenAI does.
        created: when it was begun, Unix seconds; None: now.
        usage: a chunk with the token counts ends the stream.
        continuous_usage: every chunk has those of its choice.
        token_ids: those of prompt and output.
        prompt_logprobs: how many of the likeliest tokens with each token of the prompt; None: no log-probabilities.
        kv_transfer_params: returns those for the engine that goes on, for a whole answer; None: none does.
    """

    model: str
    request_id: str
    fingerprint: str
    service_tier: str | None = None
    created: int | None = None
    usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    prompt_logprobs: int | None = None
    kv_transfer_params: Callable[[], dict[str, Any] | None] | None = None


class _Answer(AnswerFormat):
    """Token ids are the sampled ones, including a stop token. In a stream text may lag behind them."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, call: Call, tokenizer: Tokenizer, shown: Shown) -> None:
        self._call = call
        self._tokenizer = tokenizer
        self._shown = shown
        self._head = {
            "id": f"{self.id_prefix}-{shown.request_id}",
            "created": int(time.time()) if shown.created is None else shown.created,
            "model": shown.model,
            "system_fingerprint": shown.fingerprint,
        }
        if shown.service_tier is not None:
            self._head["service_tier"] = shown.service_tier
        self._around: dict[int, list[bytes]] = {}
        self.names_tokens = shown.token_ids
        self._sent = [len(choice.token_ids) if call.streaming else 0 for choice in call.choices]
        """Token ids of each choice that are written."""
        self._begun = {index for index, sent in enumerate(self._sent) if sent}
        """Choices of a stream that have a chunk with data besides the text."""

    def whole(self, pieces: Sequence[Piece]) -> bytes:
        choices = [
            _choice(choice, self._whole_content(choice, piece), self._scores(choice, piece), _finish_reason(choice))
            | {"stop_reason": choice.stop_reason}
            | self._new_token_ids(choice, piece)
            | self._prompt_in_choice(choice, piece.prompt)
            for choice, piece in zip(self._call.choices, pieces, strict=True)
        ]
        body = {**self._head, "object": self.whole_object, "choices": choices, "usage": self._usage()}
        if self._shown.kv_transfer_params is not None:
            body["kv_transfer_params"] = self._shown.kv_transfer_params()
        return _encode(body | self._prompt_in_body(pieces[0].prompt))

    def piece(self, choice: Generation, piece: Piece) -> bytes:
        index, text = choice.request.index, _only_text(choice, piece)
        shown = self._shown
        if text is None or choice.scored or shown.continuous_usage or shown.token_ids or piece.prompt:
            content = self._part(choice, piece, piece.text)
            return self._news(choice, piece, _choice(choice, content, self._scores(choice, piece)))
        around = self._around.get(index)
        if around is None:
            around = self._around[index] = self._chunk([_choice(choice, self._content(_MARK))]).split(_encode(_MARK))
        before, after = around
        return before + _encode(text) + after

    def last(self, choice: Generation, piece: Piece) -> bytes:
        scores = self._scores(choice, piece) if piece.num_scored else None
        content = self._part(choice, piece, piece.text or None)
        written = _choice(choice, content, scores, _finish_reason(choice))
        return self._news(choice, piece, written | {"stop_reason": choice.stop_reason})

    def end(self) -> bytes:
        return self._chunk([], self._usage()) if self._shown.usage else b""

    def _news(self, choice: Generation, piece: Piece, written: dict[str, Any]) -> bytes:
        """A chunk with what there is beside a choice's text; its first has the prompt."""
        prompt = {} if choice.request.index in self._begun else self._prompt_in_choice(choice, piece.prompt)
        self._begun.add(choice.request.index)
        return self._chunk(
            [written | prompt | self._new_token_ids(choice, piece)],
            self._usage_of(choice, piece.num_tokens),
            self._prompt_scores(choice, piece.prompt),
        )

    def _chunk(
        self,
        choices: list[dict[str, Any]],
        usage: dict[str, Any] | None = None,
        more: Mapping[str, Any] = _NOTHING,
    ) -> bytes:
        body: dict[str, Any] = {**self._head, "object": self.chunk_object, "choices": choices, **more}
        if self._shown.usage:
            body["usage"] = usage
        return b"data: " + _encode(body) + b"\n\n"

    def _new_token_ids(self, choice: Generation, piece: Piece) -> dict[str, list[int]]:
        """Unwritten ones of a choice, up to this piece."""
        if not self._shown.token_ids:
            return {}
        index = choice.request.index
        begin, self._sent[index] = self._sent[index], piece.num_tokens
        return {"token_ids": choice.token_ids[begin : piece.num_tokens]}

    def _prompt_in_choice(self, choice: Generation, scores: PromptScores | None = None) -> dict[str, Any]:
        return {}

    def _prompt_in_body(self, scores: PromptScores | None = None) -> dict[str, Any]:
        return {}

    def _prompt_scores(self, choice: Generation, scores: PromptScores | None) -> dict[str, Any]:
        """Log-probabilities of the prompt in a chunk, beside its choices."""
        return {}

    def _prompt(self, choice: Generation, scores: PromptScores | None) -> dict[str, Any]:
        """Prompt data of a choice besides its text."""
        shown: dict[str, Any] = {}
        if self._shown.token_ids:
            shown["prompt_token_ids"] = choice.request.prompt_token_ids
        return shown | self._scores_of_prompt(scores)

    def _scores_of_prompt(self, scores: PromptScores | None) -> dict[str, Any]:
        num_top = self._shown.prompt_logprobs
        if num_top is None or scores is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(scores, num_top, self._tokenizer.token_bytes)}

    def _part(self, choice: Generation, piece: Piece, text: str | None) -> dict[str, Any]:
        """A part of a choice in a chunk. `text`: the piece's; None: the chunk has none."""
        return self._content(text)

    def _scores(self, choice: Generation, piece: Piece) -> dict[str, Any] | None:
        return self._logprobs(choice, piece) if choice.scored else None

    def _usage(self) -> dict[str, Any]:
        """Token counts; `completion_tokens` counts what was sampled, a stop token included, as OpenAI does."""
        call = self._call
        return {
            **_counts(call.num_prompt_tokens, call.num_output_tokens),
            "prompt_tokens_details": {"cached_tokens": call.num_cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": call.num_reasoning_tokens},
        }

    def _usage_of(self, choice: Generation, num_tokens: int) -> dict[str, int] | None:
        """For a chunk, with so many tokens of the output."""
        if not self._shown.continuous_usage:
            return None
        return _counts(len(choice.request.prompt_token_ids), num_tokens)

    @abstractmethod
    def _logprobs(self, choice: Generation, piece: Piece) -> dict[str, Any]: ...

    @abstractmethod
    def _content(self, text: str | None) -> dict[str, Any]:
        """Text in a chunk; None: the chunk has none."""

    @abstractmethod
    def _whole_content(self, choice: Generation, piece: Piece) -> dict[str, Any]: ...


class ChatAnswer(_Answer):
    """A chat completion; `first` names the role of every choice, as OpenAI's first chunks do."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def first(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return b"".join(
            self._chunk(
                [_choice(choice, {"delta": delta})],
                self._usage_of(choice, len(choice.token_ids)),
                self._prompt_in_body(),
            )
            for choice in self._call.choices
        )

    def _prompt_in_body(self, scores: PromptScores | None = None) -> dict[str, Any]:
        return self._prompt(self._call.choices[0], scores)

    def _prompt_scores(self, choice: Generation, scores: PromptScores | None) -> dict[str, Any]:
        return self._scores_of_prompt(scores) if choice.request.index == 0 else {}

    def _logprobs(self, choice: Generation, piece: Piece) -> dict[str, Any]:
        named = bool(choice.request.sampling.logprob_token_ids)
        return chat_logprobs(piece.tokens, self._tokenizer.token_bytes, named=named)

    def _content(self, text: str | None) -> dict[str, Any]:
        return {"delta": {} if text is None else {"content": text}}

    def _part(self, choice: Generation, piece: Piece, text: str | None) -> dict[str, Any]:
        if choice.request.parsing is None:
            return self._content(text)
        return {"delta": delta(piece.events, self._ids(choice))}

    def _whole_content(self, choice: Generation, piece: Piece) -> dict[str, Any]:
        said: dict[str, Any] = {"content": piece.text}
        if choice.request.parsing is not None:
            said = message(piece.events, self._ids(choice))
        return {"message": {"role": "assistant", **said, "refusal": None}}

    def _ids(self, choice: Generation) -> CallIds:
        return call_ids(choice, str(self._head["id"]))


class CompletionAnswer(_Answer):
    """A text completion."""

    id_prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def _prompt_in_choice(self, choice: Generation, scores: PromptScores | None = None) -> dict[str, Any]:
        return self._prompt(choice, scores)

    def first(self) -> bytes:
        return b""

    def _logprobs(self, choice: Generation, piece: Piece) -> dict[str, Any]:
        token_bytes, request = self._tokenizer.token_bytes, choice.request
        scores = completion_logprobs(piece.tokens, token_bytes)
        if request.echo is None or piece.prompt is None:
            return scores
        return with_prompt(scores, piece.prompt, request.echo, request.sampling.logprobs or 0, token_bytes)

    def _content(self, text: str | None) -> dict[str, Any]:
        return {"text": text or ""}

    def _whole_content(self, choice: Generation, piece: Piece) -> dict[str, Any]:
        return {"text": piece.text}


def _choice(
    choice: Generation,
    content: dict[str, Any],
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    return {"index": choice.request.index, **content, "logprobs": logprobs, "finish_reason": finish_reason}


def _only_text(choice: Generation, piece: Piece) -> str | None:
    """The content of a piece; None: there is more, or none."""
    if choice.request.parsing is None:
        return piece.text
    match piece.events:
        case [TextEvent(kind="content", text=text)]:
            return text
    return None


_MARK = "\x00text\x00"
"""Placeholder of the text of a chunk; no model name contains it by chance."""


def _counts(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _finish_reason(generation: Generation) -> str:
    if generation.finish_reason is None:
        raise AssertionError("the generation has not ended")
    stopped = generation.finish_reason is FinishReason.STOP
    return "tool_calls" if stopped and generation.called else generation.finish_reason.value

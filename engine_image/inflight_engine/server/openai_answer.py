"""Answers in OpenAI's JSON. What is the same in every chunk of a stream is encoded once."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from inflight_engine.server.call import Call
from inflight_engine.server.generation import Generation, Piece
from inflight_engine.server.logprobs import chat_logprobs, completion_logprobs
from inflight_engine.server.prepare import Tokenizer

_encode = msgspec.json.encode


class _Answer(ABC):
    """Args:
    model: the served name.
    include_usage: `stream_options.include_usage`: a chunk with the token counts ends the stream.
    """

    id_prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, call: Call, tokenizer: Tokenizer, *, model: str, include_usage: bool) -> None:
        self._call = call
        self._tokenizer = tokenizer
        self._head = {"id": f"{self.id_prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._include_usage = include_usage
        self._around: dict[int, list[bytes]] = {}

    def whole(self, pieces: Sequence[Piece]) -> bytes:
        choices = [
            self._whole_choice(choice.request.index, piece.text, self._scores(choice, piece), _finish_reason(choice))
            for choice, piece in zip(self._call.choices, pieces, strict=True)
        ]
        return _encode({**self._head, "object": self.whole_object, "choices": choices, "usage": self._usage()})

    def piece(self, choice: Generation, piece: Piece) -> bytes:
        index = choice.request.index
        if choice.scored:
            return self._chunk([self._choice(index, piece.text, self._scores(choice, piece), None)])
        around = self._around.get(index)
        if around is None:
            around = self._around[index] = self._chunk([self._choice(index, _MARK, None, None)]).split(_encode(_MARK))
        before, after = around
        return before + _encode(piece.text) + after

    def last(self, choice: Generation) -> bytes:
        return self._chunk([self._choice(choice.request.index, None, None, _finish_reason(choice))])

    def end(self) -> bytes:
        return self._chunk([], self._usage()) if self._include_usage else b""

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        body = {**self._head, "object": self.chunk_object, "choices": choices}
        if self._include_usage:
            body["usage"] = usage
        return b"data: " + _encode(body) + b"\n\n"

    def _scores(self, choice: Generation, piece: Piece) -> dict[str, Any] | None:
        return self._logprobs(piece) if choice.scored else None

    def _usage(self) -> dict[str, int]:
        """Token counts; `completion_tokens` counts what was sampled, a stop token included, as OpenAI does."""
        prompt, completion = self._call.num_prompt_tokens, self._call.num_output_tokens
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    @abstractmethod
    def _logprobs(self, piece: Piece) -> dict[str, Any]: ...

    @abstractmethod
    def _whole_choice(
        self, index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str
    ) -> dict[str, Any]: ...

    @abstractmethod
    def _choice(
        self, index: int, text: str | None, logprobs: dict[str, Any] | None, finish_reason: str | None
    ) -> dict[str, Any]: ...


class ChatAnswer(_Answer):
    """A chat completion; `first` names the role of every choice, as OpenAI's first chunks do."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def first(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return b"".join(
            self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])
            for index in range(len(self._call.choices))
        )

    def _logprobs(self, piece: Piece) -> dict[str, Any]:
        return chat_logprobs(piece.tokens, self._tokenizer.token_bytes)

    def _whole_choice(
        self, index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str
    ) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason}

    def _choice(
        self, index: int, text: str | None, logprobs: dict[str, Any] | None, finish_reason: str | None
    ) -> dict[str, Any]:
        delta = {} if text is None else {"content": text}
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


class CompletionAnswer(_Answer):
    """A text completion."""

    id_prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def first(self) -> bytes:
        return b""

    def _logprobs(self, piece: Piece) -> dict[str, Any]:
        return completion_logprobs(piece.tokens, self._tokenizer.token_bytes)

    def _whole_choice(
        self, index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str
    ) -> dict[str, Any]:
        return self._choice(index, text, logprobs, finish_reason)

    def _choice(
        self, index: int, text: str | None, logprobs: dict[str, Any] | None, finish_reason: str | None
    ) -> dict[str, Any]:
        return {"index": index, "text": text or "", "logprobs": logprobs, "finish_reason": finish_reason}


_MARK = "\x00text\x00"
"""Where the text of a chunk goes; no model name can hold it by chance."""


def _finish_reason(generation: Generation) -> str:
    if generation.finish_reason is None:
        raise AssertionError("the generation has not ended")
    return generation.finish_reason.value

"""Answers in OpenAI's JSON. What is the same in every chunk of a stream is encoded once."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from typing import Any

import msgspec

from inflight_engine.server.generation import Generation

_encode = msgspec.json.encode


class _Answer(ABC):
    """Args:
    model: the served name.
    include_usage: `stream_options.include_usage`: a chunk with the token counts ends the stream.
    """

    id_prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, model: str, include_usage: bool) -> None:
        self._head = {"id": f"{self.id_prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._include_usage = include_usage
        before, after = self._chunk([self._choice(_MARK, None)]).split(_encode(_MARK))
        self._before, self._after = before, after

    def whole(self, generation: Generation, text: str) -> bytes:
        choice = self._whole_choice(text, _finish_reason(generation))
        return _encode(
            {**self._head, "object": self.whole_object, "choices": [choice], "usage": usage(generation)},
        )

    def piece(self, generation: Generation, text: str) -> bytes:
        return self._before + _encode(text) + self._after

    def last(self, generation: Generation) -> bytes:
        end = self._chunk([self._choice(None, _finish_reason(generation))])
        return end + self._chunk([], usage(generation)) if self._include_usage else end

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        body = {**self._head, "object": self.chunk_object, "choices": choices}
        if self._include_usage:
            body["usage"] = usage
        return b"data: " + _encode(body) + b"\n\n"

    @abstractmethod
    def _whole_choice(self, text: str, finish_reason: str) -> dict[str, Any]: ...

    @abstractmethod
    def _choice(self, text: str | None, finish_reason: str | None) -> dict[str, Any]: ...


class ChatAnswer(_Answer):
    """A chat completion; `first` names the role, as OpenAI's first chunk does."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def first(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])

    def _whole_choice(self, text: str, finish_reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}

    def _choice(self, text: str | None, finish_reason: str | None) -> dict[str, Any]:
        delta = {} if text is None else {"content": text}
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


class CompletionAnswer(_Answer):
    """A text completion."""

    id_prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def first(self) -> bytes:
        return b""

    def _whole_choice(self, text: str, finish_reason: str) -> dict[str, Any]:
        return self._choice(text, finish_reason)

    def _choice(self, text: str | None, finish_reason: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text or "", "logprobs": None, "finish_reason": finish_reason}


_MARK = "\x00text\x00"
"""Where the text of a chunk goes; no model name can hold it by chance."""


def usage(generation: Generation) -> dict[str, int]:
    """Token counts; `completion_tokens` counts what was sampled, a stop token included, as OpenAI does."""
    prompt, completion = len(generation.request.prompt_token_ids), len(generation.token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _finish_reason(generation: Generation) -> str:
    if generation.finish_reason is None:
        raise AssertionError("the generation has not ended")
    return generation.finish_reason.value

"""Streamed responses of the OpenAI API, as server-sent events: text, token counts and times."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from inflight_kubectl.output import Problem


class AnswerError(Problem):
    """A response that is an error, or ends early."""


@dataclass(slots=True)
class Answer:
    """One response while it is read. Times are seconds on the caller's steady clock.

    Attributes:
        began: when the request was sent.
        first, last: when the first and the last piece of text arrived; None before.
        finish_reason: None before the end.
        prompt_tokens, completion_tokens, cached_tokens: as the engine counts them; 0 before the end.
        done: whether the stream was closed normally.
    """

    began: float
    text: str = ""
    first: float | None = None
    last: float | None = None
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    done: bool = False

    def take(self, line: str, now: float) -> str:
        """Processes one line of the stream; returns its text.

        Raises:
            AnswerError: the engine reports an error in the stream, or the line is no event.
        """
        if not line.startswith("data:"):
            return ""
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            self.done = True
            return ""
        event = _object(data)
        if "error" in event:
            raise AnswerError(f"the engine ended the answer: {error_message(event)}")
        usage = event.get("usage")
        if usage:
            self.prompt_tokens = usage.get("prompt_tokens") or 0
            self.completion_tokens = usage.get("completion_tokens") or 0
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        choice = (event.get("choices") or [{}])[0]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        piece: str = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        if piece or choice.get("finish_reason"):
            # A token may complete no character: the event that ends the response counts as well.
            self.first, self.last = now if self.first is None else self.first, now
        self.text += piece
        return piece

    def check_whole(self) -> None:
        """
        Raises:
            AnswerError: the stream ended before the response.
        """
        if not self.done or self.finish_reason is None:
            raise AnswerError("the connection ended in the middle of the answer")

    @property
    def ttft(self) -> float | None:
        """Seconds until the first token."""
        return None if self.first is None else self.first - self.began

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None for fewer than two tokens."""
        if self.first is None or self.last is None or self.completion_tokens < 2:
            return None
        return (self.last - self.first) / (self.completion_tokens - 1)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second after the first; None for fewer than two tokens."""
        return 1 / self.tpot if self.tpot else None


def error_message(body: Any) -> str:
    """The message of an error in OpenAI's form, else the unchanged body."""
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and error.get("message"):
        return str(error["message"])
    return str(error or body)


def refusal(status: int, body: bytes) -> AnswerError:
    """The error of an HTTP response other than 200, in the wording of the engine or the gateway."""
    try:
        content = json.loads(body)
        said = error_message(content)
    except ValueError:
        content, said = None, body.decode(errors="replace").strip()
    error = content.get("error") if isinstance(content, dict) else None
    remedy = {
        503: "No engine takes requests now: see `kubectl inflight why SERVICE`",
        504: "The engine did not answer in time: see `kubectl inflight why SERVICE`, and try again",
        401: "Give a valid API key with --api-key or in INFLIGHT_API_KEY; `kubectl inflight keys create` makes one",
    }.get(status, "")
    if isinstance(error, dict) and error.get("code") in ("queue_full", "api_keys_unavailable"):
        remedy = ""  # the message contains the remedy
    return AnswerError(f"the service answers {status}: {' '.join(said.split())[:500] or 'without a reason'}", remedy)


def _object(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError as error:
        raise AnswerError(f"the engine sent an event that is no JSON: {data[:100]}") from error
    if not isinstance(event, dict):
        raise AnswerError(f"the engine sent an event that is no object: {data[:100]}")
    return event

"""Responses of the OpenAI API: the one reader of event streams, with text, token counts and times of an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from inflight_kubectl.output import Problem

DONE = b"[DONE]"
"""The last event of a stream."""


class AnswerError(Problem):
    """A response that is an error, or ends early."""


class RefusalError(AnswerError):
    """An HTTP response other than 200.

    Attributes:
        status: HTTP status code.
        reason: error message of the engine or the gateway.
        retry_after: seconds of the header Retry-After; None without it.
    """

    def __init__(self, status: int, reason: str, remedy: str, retry_after: float | None) -> None:
        super().__init__(f"the service answers {status}: {reason}", remedy)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class EventReader:
    """Splits a stream of server-sent events, in chunks of any size, into the data of its `data:` lines.

    Comments, such as heartbeats and progress frames, are skipped.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the data of the lines that this chunk completes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


@dataclass(slots=True)
class Answer:
    """A response while it is read. Times are seconds on the caller's steady clock.

    Attributes:
        began: when the request was sent.
        text: content so far.
        aside: what the last event has beside content: thinking, and tool calls as `[NAME] ARGUMENTS`.
        thinking: thinking so far.
        tool_calls: name and arguments, as JSON text, of each tool call so far, by its index.
        first, last: when the first and the last piece arrived; None before.
        longest_gap: seconds between two pieces; 0 for fewer than two.
        ended: when the response was read to its end; None before.
        token_ids: token ids of its text, if the request asked for them.
        pieces: events with a choice.
        finish_reason: None before the end.
        prompt_tokens, completion_tokens, cached_tokens: tokens by the engine's count; 0 before the end.
        done: True if the response was closed normally.
    """

    began: float
    text: str = ""
    aside: str = ""
    thinking: str = ""
    tool_calls: dict[int, tuple[str, str]] = field(default_factory=dict)
    first: float | None = None
    last: float | None = None
    longest_gap: float = 0.0
    ended: float | None = None
    token_ids: list[int] = field(default_factory=list)
    pieces: int = 0
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    done: bool = False

    def take(self, data: bytes, now: float) -> str:
        """Processes the data of one event; returns its text.

        Raises:
            AnswerError: the engine reports an error, or this is no event of a completion.
        """
        self.aside = ""
        if data == DONE:
            self.done = True
            return ""
        event = _object(data)
        if "error" in event:
            raise AnswerError(f"the engine ended the answer: {error_message(event)}")
        try:
            return self._take(event, now)
        except (AttributeError, LookupError, TypeError) as error:
            raise AnswerError(f"the engine sent an event that is no completion: {_excerpt(data)}") from error

    def take_whole(self, body: bytes, now: float) -> None:
        """Processes a response that is not streamed.

        Raises:
            AnswerError: see `take`.
        """
        self.take(body, now)
        self.done = True

    def _take(self, event: dict[str, Any], now: float) -> str:
        usage = event.get("usage")
        if usage:
            self.prompt_tokens = usage.get("prompt_tokens") or 0
            self.completion_tokens = usage.get("completion_tokens") or 0
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if not event.get("choices"):
            return ""
        choice = event["choices"][0]
        said = choice.get("delta") or choice.get("message") or {}
        piece: str = choice.get("text") or said.get("content") or ""
        self.aside = self._take_aside(said)
        ids, finish_reason = choice.get("token_ids"), choice.get("finish_reason")
        self.pieces += 1
        if piece or self.aside or ids or finish_reason:
            # A token may complete no character: the event that ends the response counts as well.
            if self.last is None:
                self.first = now
            else:
                self.longest_gap = max(self.longest_gap, now - self.last)
            self.last = now
        self.text += piece
        self.token_ids += ids or ()
        self.finish_reason = finish_reason or self.finish_reason
        return piece

    def _take_aside(self, said: dict[str, Any]) -> str:
        thought: str = said.get("reasoning") or said.get("reasoning_content") or ""
        self.thinking += thought
        aside = thought
        for position, call in enumerate(said.get("tool_calls") or ()):
            name, arguments = call["function"].get("name") or "", call["function"].get("arguments") or ""
            index = call.get("index", position)  # a whole answer has none
            name_before, arguments_before = self.tool_calls.get(index, ("", ""))
            self.tool_calls[index] = name_before + name, arguments_before + arguments
            aside += (f"\n[{name}] " if name else "") + arguments
        return aside

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
    def latency(self) -> float | None:
        """Seconds until the response was read to its end."""
        return None if self.ended is None else self.ended - self.began

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
    """Returns the message of an error in OpenAI's form, else the unchanged body."""
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and error.get("message"):
        return str(error["message"])
    return str(error or body)


def refusal(status: int, body: bytes, retry_after: str = "") -> RefusalError:
    """Returns the error of an HTTP response other than 200, in the wording of the engine or the gateway."""
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
    reason = " ".join(said.split())[:500] or "without a reason"
    return RefusalError(status, reason, remedy, float(retry_after) if retry_after.isdecimal() else None)


def _object(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError as error:
        raise AnswerError(f"the engine sent an event that is no JSON: {_excerpt(data)}") from error
    if not isinstance(event, dict):
        raise AnswerError(f"the engine sent an event that is no object: {_excerpt(data)}")
    return event


def _excerpt(data: bytes) -> str:
    return data[:100].decode(errors="replace")

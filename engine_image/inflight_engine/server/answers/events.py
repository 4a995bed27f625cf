"""Reasoning, content and tool calls of an answer in OpenAI's JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

from inflight_engine.formats.events import CallEvent, Event, TextEvent
from inflight_engine.server.requests.generation import Generation

_ALPHANUMERIC = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

_PROMPT_END = 64
"""Tokens of a prompt's end that ids depend on."""


class CallIds:
    """Ids of the calls of a choice: another replica that continues the answer gives the same, and the next answers of a
    conversation give others, also where a client sends all of its requests with one id.

    Args:
        choice: differs between choices.
        prompt: token ids. Those of a conversation grow, or where they are truncated end differently.
        short: nine letters and digits, as Mistral's chat templates demand.
    """

    def __init__(self, choice: str, prompt: Sequence[int] = (), *, short: bool) -> None:
        self._choice = choice
        self._prompt = prompt
        self._short = short

    def of(self, call: CallEvent) -> str:
        """The id of a call."""
        if call.id is not None:
            return call.id
        prompt = f"{len(self._prompt)} {self._prompt[-_PROMPT_END:]}"
        digest = blake2b(f"{self._choice} {prompt} {call.index}".encode(), digest_size=12)
        if not self._short:
            return f"call_{digest.hexdigest()}"
        return "".join(_ALPHANUMERIC[byte % len(_ALPHANUMERIC)] for byte in digest.digest()[:9])


def call_ids(choice: Generation, answer: str) -> CallIds:
    """Ids of the calls of a choice. `answer`: the id of its answer."""
    parsing = choice.request.parsing
    short = parsing is not None and parsing.format is not None and parsing.format.short_ids
    return CallIds(f"{answer} {choice.request.index}", choice.request.prompt_token_ids, short=short)


def delta(events: Iterable[Event], ids: CallIds) -> dict[str, Any]:
    """`delta` of a chunk. Reasoning has the names of vLLM's versions before and since 0.16."""
    texts: dict[str, list[str]] = defaultdict(list)
    arguments: dict[int, list[str]] = defaultdict(list)
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, TextEvent):
            texts[event.kind].append(event.text)
            continue
        entry = calls.setdefault(event.index, {"index": event.index, "function": {}})
        if event.name is not None:
            entry |= {"id": ids.of(event), "type": "function", "function": {"name": event.name}}
        arguments[event.index].append(event.arguments)
    written: dict[str, Any] = {kind: "".join(parts) for kind, parts in texts.items()}
    for index, entry in calls.items():
        entry["function"]["arguments"] = "".join(arguments[index])
    if "reasoning" in written:
        written["reasoning_content"] = written["reasoning"]
    if calls:
        written["tool_calls"] = [*calls.values()]
    return written


def message(events: Iterable[Event], ids: CallIds) -> dict[str, Any]:
    """Fields of a whole message: `content` is null where there are only tool calls."""
    written = delta(events, ids)
    for call in written.get("tool_calls", ()):
        del call["index"]
    return {"content": None if "tool_calls" in written else "", **written}

"""The fields of a request's body that the gateway reads. Engines validate bodies and return the errors; here a field of
an unexpected type counts as absent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from inflight_gateway.ext_proc.prefix import estimated_tokens, text_prefix, token_prefix


class _Fields(msgspec.Struct):
    """Of all generation endpoints. msgspec skips other fields without creating objects."""

    model: Any = None
    messages: Any = None
    prompt: Any = None
    tools: Any = None
    stream: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    service_class: Any = msgspec.field(default=None, name="class")
    priority: Any = None
    cache_salt: Any = None
    inflight_continuation: Any = None


@dataclass(frozen=True, slots=True)
class Body:
    """Attributes:
    prompt_tokens: estimated, including the tokens of a continuation.
    text, token_ids: of the first prompt, one of them empty.
    """

    model: str | None = None
    stream: bool = False
    max_tokens: int | None = None
    service_class: str | None = None
    priority: int | None = None
    salt: str = ""
    prompt_tokens: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()

    def prefix(self, tenant: str) -> tuple[int, ...]:
        """Hashes of the leading blocks, see `prefix.py`."""
        if self.token_ids:
            return token_prefix(self.token_ids, tenant, self.salt)
        return text_prefix(self.text, tenant, self.salt)


_decoder = msgspec.json.Decoder(_Fields)


def parse(body: bytes) -> Body:
    """The readable fields; none if the body is no JSON object."""
    try:
        return _read(_decoder.decode(body))
    except (ValueError, RecursionError):
        return Body()


def _read(fields: _Fields) -> Body:
    """Raises: RecursionError: tools are nested almost as deeply as can be decoded; encoding them takes more."""
    prompts = [_conversation(fields.messages, fields.tools)] if fields.messages else _prompts(fields.prompt)
    first = prompts[0] if prompts else ""
    return Body(
        model=_text(fields.model),
        stream=fields.stream is True,
        max_tokens=_count(fields.max_completion_tokens) or _count(fields.max_tokens),
        service_class=_text(fields.service_class),
        priority=fields.priority if type(fields.priority) is int else None,
        salt=_text(fields.cache_salt) or "",
        prompt_tokens=sum(_tokens(prompt) for prompt in prompts) + _generated(fields.inflight_continuation),
        text=first if isinstance(first, str) else "",
        token_ids=() if isinstance(first, str) else first,
    )


def _conversation(messages: Any, tools: Any) -> str:
    """Canonical text: tools first, as chat templates put them; each message with its role, so that the same text with
    another role is a different prompt."""
    parts = []
    if tools:
        parts.append(msgspec.json.encode(tools).decode())
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict):
            parts.append(f"\x1e{_text(message.get('role'))}\x1f{_content(message.get('content'))}")
            if message.get("tool_calls"):
                parts.append(msgspec.json.encode(message["tool_calls"]).decode())
    return "".join(parts)


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(
        part["text"]
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    )


def _prompts(prompt: Any) -> list[str | tuple[int, ...]]:
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        return []
    if prompt and type(prompt[0]) is int:
        return [_token_ids(prompt)]
    return [one if isinstance(one, str) else _token_ids(one) for one in prompt if isinstance(one, (str, list))]


def _token_ids(items: list[Any]) -> tuple[int, ...]:
    return tuple(item for item in items if type(item) is int)


def _tokens(prompt: str | tuple[int, ...]) -> int:
    return estimated_tokens(prompt) if isinstance(prompt, str) else len(prompt)


def _generated(continuation: Any) -> int:
    """Tokens that the engine prefills again."""
    return sum(len(token_ids) for token_ids in _choices(continuation))


def _choices(continuation: Any) -> Iterator[list[Any]]:
    choices = continuation.get("choices") if isinstance(continuation, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        token_ids = choice.get("token_ids") if isinstance(choice, dict) else None
        if isinstance(token_ids, list):
            yield token_ids


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None

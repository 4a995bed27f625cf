"""The fields of a request's body that the gateway reads, and their form in the header `BODY`.

The relay, which has the body, reads them once and sends them to the picker in the head. Engines validate bodies and
return the errors; here a field of an unexpected type counts as absent.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from typing import Annotated, Any

import msgspec

from inflight_gateway.prefix import HASH_BYTES, MAX_BLOCKS, estimated_tokens, of_tenant, text_blocks, token_blocks

NAME_CHARACTERS = 256
"""Of a model or class; longer ones are cut. Names of models end at 255 (spec.model.servedName), so that the beginning
of a longer one names none."""

_LARGEST = 2**31 - 1
"""Numbers beyond it count as absent: engines refuse them."""


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
    inflight_continuation: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Body(msgspec.Struct, frozen=True, array_like=True):
    """Attributes:
    stream: as sent by the client, which an engine may refuse.
    prompt_tokens: estimated, with those of a continuation.
    blocks: hashes of the first prompt's leading blocks, see `prefix.py`.
    continues: it has the relay's own field, which a client may not set.
    """

    model: str | None = None
    stream: bool = False
    max_tokens: int | None = None
    service_class: str | None = None
    priority: int | None = None
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    blocks: Annotated[bytes, msgspec.Meta(max_length=MAX_BLOCKS * HASH_BYTES)] = b""
    continues: bool = False

    def prefix(self, tenant: str) -> tuple[int, ...]:
        """Hashes of the leading blocks. Engines share no blocks between tenants."""
        return of_tenant(self.blocks, tenant)

    def continued(self, generated: int) -> Body:
        """The same with a continuation. Args: generated: tokens that the engine prefills again."""
        return msgspec.structs.replace(self, prompt_tokens=self.prompt_tokens + generated)


NO_FIELDS = Body()

_decoder = msgspec.json.Decoder(_Fields)
_packer = msgspec.msgpack.Encoder()
_unpacker = msgspec.msgpack.Decoder(Body)


def parse(body: bytes) -> Body | None:
    """None: it is no JSON object, or one that is nested too deeply."""
    try:
        return _read(_decoder.decode(body))
    except (ValueError, RecursionError):
        return None


def to_header(body: Body) -> bytes:
    """At most 25 KiB: 16 KiB of hashes and 2 KiB of names, by 4/3."""
    return b2a_base64(_packer.encode(body), newline=False)


def from_header(value: str) -> Body:
    """No fields if the value is malformed."""
    try:
        body = _unpacker.decode(a2b_base64(value, strict_mode=True))
    except ValueError:
        return NO_FIELDS
    return body if len(body.blocks) % HASH_BYTES == 0 else NO_FIELDS


def _read(fields: _Fields) -> Body:
    """Raises: RecursionError: tools are nested almost as deeply as can be decoded; encoding them takes more."""
    prompts = [_conversation(fields.messages, fields.tools)] if fields.messages else _prompts(fields.prompt)
    first = prompts[0] if prompts else ""
    salt = fields.cache_salt if isinstance(fields.cache_salt, str) else ""
    return Body(
        model=_name(fields.model),
        stream=bool(fields.stream),
        max_tokens=_count(fields.max_completion_tokens) or _count(fields.max_tokens),
        service_class=_name(fields.service_class),
        priority=_number(fields.priority),
        prompt_tokens=sum(_tokens(prompt) for prompt in prompts),
        blocks=text_blocks(first, salt) if isinstance(first, str) else token_blocks(first, salt),
        continues=fields.inflight_continuation is not msgspec.UNSET,
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


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _name(value: Any) -> str | None:
    return value[:NAME_CHARACTERS] if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    return value if type(value) is int and abs(value) <= _LARGEST else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None or number < 0 else number

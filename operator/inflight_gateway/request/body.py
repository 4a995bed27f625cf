"""The fields of a request's body that the gateway reads.

The relay, which has the body, reads them once and sends them to the picker. Engines read bodies with the same parser,
validate them and return the errors; here a field of an unexpected type counts as absent.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from inflight_gateway.request.paths import Api
from inflight_gateway.request.prefix import (
    BLOCK_TOKENS,
    BYTES_PER_TOKEN,
    HASH_BYTES,
    MAX_BLOCKS,
    estimated_tokens,
    json_blocks,
    of_tenant,
    text_blocks,
    token_blocks,
)
from inflight_settings.requests import MAX_N

NAME_CHARACTERS = 256
"""Most characters of the name of a model or class; longer names are cut. Names of models have at most 255
(spec.model.servedName), so that the beginning of a longer name is no name of a model."""

MAX_DECODED_BYTES = 256 * 2**10
"""Most bytes of a prompt's JSON text that is decoded. A longer text itself is hashed and counted: the relay reads it
between two tokens of all other streams, and small values take fifty times as much memory as text.

Hashes of both kinds differ: a conversation that grows beyond this matches no cached prefix once. From then on its
requests share the text up to the new message, as long as the client writes the earlier ones in the same way."""

_BYTES_PER_ID = 6
"""Mean bytes of a token id in a JSON list, with its comma, for vocabularies of 32k to 256k tokens."""

_LISTED_IDS = re.compile(rb"\[\s*(\[\s*)?\d")
_LISTED_TEXTS = re.compile(rb'\[\s*"')

_LARGEST = 2**31 - 1
"""Largest number that is read; larger ones count as absent: engines refuse them."""

_MAX_CHOICES = 2**16
"""Most answers that are counted: more than an engine's queue takes."""

MAX_SCORES = 2**10
"""Most log-probabilities for each token that are counted: engines allow some 20."""

_SCALAR_BYTES = 32
"""Most bytes of the JSON text of a number or a Boolean value. Engines refuse longer ones."""

_ABSENT = msgspec.Raw()
_NO_ECHO = (_ABSENT, msgspec.Raw(b"false"), msgspec.Raw(b"null"))

_DEFAULT_TIERS = ("auto", "default", "standard_only")
"""Values of `service_tier` that mean the default class: OpenAI's and Anthropic's."""

_JSON_PARTS = ("thinking", "tool_use", "tool_result")
"""Types of parts of a message without a text (Anthropic) that are part of the prompt."""


class _Fields(msgspec.Struct):
    """JSON texts of the fields of all generation endpoints; empty: absent. msgspec checks the text and skips other
    fields, without creating objects: any field may hold millions of values."""

    model: msgspec.Raw = _ABSENT
    messages: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    instructions: msgspec.Raw = _ABSENT
    system: msgspec.Raw = _ABSENT
    input: msgspec.Raw = _ABSENT
    query: msgspec.Raw = _ABSENT
    queries: msgspec.Raw = _ABSENT
    documents: msgspec.Raw = _ABSENT
    items: msgspec.Raw = _ABSENT
    text_1: msgspec.Raw = _ABSENT
    text_2: msgspec.Raw = _ABSENT
    data_1: msgspec.Raw = _ABSENT
    data_2: msgspec.Raw = _ABSENT
    stream: msgspec.Raw = _ABSENT
    max_tokens: msgspec.Raw = _ABSENT
    max_completion_tokens: msgspec.Raw = _ABSENT
    max_output_tokens: msgspec.Raw = _ABSENT
    n: msgspec.Raw = _ABSENT
    prompt_logprobs: msgspec.Raw = _ABSENT
    echo: msgspec.Raw = _ABSENT
    logprobs: msgspec.Raw = _ABSENT
    service_class: msgspec.Raw = msgspec.field(default=_ABSENT, name="class")
    service_tier: msgspec.Raw = _ABSENT
    priority: msgspec.Raw = _ABSENT
    cache_salt: msgspec.Raw = _ABSENT
    prompt_cache_key: msgspec.Raw = _ABSENT
    inflight_continuation: msgspec.Raw = _ABSENT


class Body(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a body.

    Attributes:
        stream: the client's value, which an engine may refuse.
        prompt_tokens: estimated number, with the tokens of a continuation.
        blocks: hashes of the first prompt's leading blocks, see `prefix.py`.
        continues: the body has the relay's own field, which a client may not set.
        choices: answers that the engine generates: `n` of each prompt. Of pooled texts: their number.
        scores: log-probabilities for each token of the prompt, which come with the first token of the answer.
    """

    model: str | None = None
    stream: bool = False
    max_tokens: int | None = None
    service_class: str | None = None
    priority: int | None = None
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    blocks: Annotated[bytes, msgspec.Meta(max_length=MAX_BLOCKS * HASH_BYTES)] = b""
    continues: bool = False
    choices: Annotated[int, msgspec.Meta(ge=1)] = 1
    scores: Annotated[int, msgspec.Meta(ge=0, le=MAX_SCORES)] = 0

    def prefix(self, tenant: str) -> tuple[int, ...]:
        """Returns the hashes of the leading blocks. Engines share no blocks between tenants."""
        return of_tenant(self.blocks, tenant)

    def continued(self, generated: int) -> Body:
        """Returns the fields with a continuation. Args: generated: tokens that the engine prefills again."""
        return msgspec.structs.replace(self, prompt_tokens=self.prompt_tokens + generated)


NO_FIELDS = Body()

_decoder = msgspec.json.Decoder(_Fields)


def parse(body: bytes, api: Api = Api.OPENAI) -> Body | None:
    """Reads a body; None: it is no JSON object in UTF-8, or one that is nested too deeply. Engines refuse it too."""
    try:
        return _read(_decoder.decode(body), api)
    except (ValueError, RecursionError):
        return None


def _read(fields: _Fields, api: Api) -> Body:
    """Reads the fields.

    Raises:
        ValueError: a part that is decoded is no UTF-8.
        RecursionError: tools are nested almost as deeply as can be decoded; encoding them takes more.
    """
    prompts, prompt_tokens, blocks = _prompts_read(fields, api)
    samples = min(_count(fields.n) or 1, MAX_N) if api is Api.OPENAI else 1
    tier = _name(fields.service_tier)
    return Body(
        model=_name(fields.model),
        stream=len(fields.stream) > _SCALAR_BYTES or bool(_decoded(fields.stream)),
        max_tokens=_most_tokens(fields, api),
        service_class=_name(fields.service_class) or (None if tier in _DEFAULT_TIERS else tier),
        priority=_number(fields.priority),
        prompt_tokens=prompt_tokens,
        blocks=blocks,
        continues=len(fields.inflight_continuation) > 0,
        choices=min(max(1, prompts) * samples, _MAX_CHOICES),
        scores=min(_scores(fields, api), MAX_SCORES),
    )


def _most_tokens(fields: _Fields, api: Api) -> int | None:
    """Returns the most output tokens of a choice; None: the request does not say."""
    if api is Api.POOLING:
        return 0
    if api is Api.RESPONSES:
        return _count(fields.max_output_tokens)
    return (_count(fields.max_completion_tokens) if api is Api.OPENAI else None) or _count(fields.max_tokens)


def _scores(fields: _Fields, api: Api) -> int:
    """Returns `Body.scores`: those of the likeliest tokens, and that of the token itself. In vLLM, -1 asks for those of
    all tokens, and `echo` may be a number or a word."""
    if api is not Api.OPENAI:
        return 0
    counts = (_number(fields.prompt_logprobs), None if fields.echo in _NO_ECHO else _number(fields.logprobs))
    return max((MAX_SCORES if each < 0 else each + 1 for each in counts if each is not None), default=0)


def _prompts_read(fields: _Fields, api: Api) -> tuple[int, int, bytes]:
    """Returns the number of prompts, their estimated tokens, and the hashes of the first prompt's leading blocks."""
    salt = "\0".join(filter(None, (_string(fields.cache_salt), _string(fields.prompt_cache_key))))
    parts, conversation = _parts(fields, api)
    if sum(map(len, parts)) > MAX_DECODED_BYTES:
        count = 1 if conversation else sum(_number_of_prompts(part) for part in parts if len(part))
        return count, *_of_json(parts, salt)
    decoded = [_decoded(part) for part in parts]
    prompts = [_conversation(*decoded)] if conversation else [one for texts in decoded for one in _prompts(texts)]
    first = prompts[0] if prompts else ""
    blocks = text_blocks(first, salt) if isinstance(first, str) else token_blocks(first, salt)
    return len(prompts), sum(map(_tokens, prompts)), blocks


def _parts(fields: _Fields, api: Api) -> tuple[tuple[msgspec.Raw, ...], bool]:
    """Returns the JSON texts of a conversation in the order of a chat template, and True; or those of prompts, and
    False."""
    if api is Api.RESPONSES:
        return (fields.tools, fields.instructions, fields.input), True
    if api is Api.MESSAGES:
        return (fields.tools, fields.system, fields.messages), True
    if len(fields.messages) > len("null"):
        return (fields.tools, _ABSENT, fields.messages), True
    if api is Api.POOLING:
        firsts = (fields.query, fields.queries, fields.text_1, fields.data_1)
        others = (fields.input, fields.documents, fields.items, fields.text_2, fields.data_2)
        return (*firsts, *others), False
    return (fields.prompt,), False


def _number_of_prompts(prompt: msgspec.Raw) -> int:
    """Returns the number of prompts in a long JSON text without decoding it; exact for those that engines take."""
    if bytes(memoryview(prompt)[:1]) != b"[":
        return 1
    text = bytes(prompt)
    if not _LISTED_TEXTS.match(text):
        return max(1, text.count(b"[") - 1)
    if b"\\" not in text:
        return text.count(b'"') // 2
    plain = text.replace(b"\\\\", b"")  # the second of two backslashes escapes nothing
    return (plain.count(b'"') - plain.count(b'\\"')) // 2


def _of_json(parts: tuple[msgspec.Raw, ...], salt: str) -> tuple[int, bytes]:
    """Returns tokens and hashes of long JSON texts."""
    token_bytes = _BYTES_PER_ID if any(_LISTED_IDS.match(part) for part in parts) else BYTES_PER_TOKEN
    most = MAX_BLOCKS * BLOCK_TOKENS * token_bytes
    text = b"".join(memoryview(part)[:most] for part in parts)
    return sum(map(len, parts)) // token_bytes, json_blocks(text, token_bytes, salt)


def _conversation(tools: Any, system: Any, messages: Any) -> str:
    """Returns the canonical text: tools first, as chat templates put them; each message with its role, so that the same
    text with another role is a different prompt.

    Args:
        system: text, or parts of it, before the messages. messages: also items of OpenAI Responses, or one text.
    """
    parts = []
    if tools:
        parts.append(_json(tools))
    if system:
        parts.append(f"\x1esystem\x1f{_content(system)}")
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        if "role" not in message and "type" in message:  # a call of a tool, or its result
            parts.append(_json(message))
            continue
        parts.append(f"\x1e{_text(message.get('role'))}\x1f{_content(message.get('content'))}")
        if message.get("tool_calls"):
            parts.append(_json(message["tool_calls"]))
    return "".join(parts)


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(
        part["text"] if isinstance(part.get("text"), str) else _json(part)
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, dict) and (isinstance(part.get("text"), str) or part.get("type") in _JSON_PARTS)
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


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


def _decoded(raw: msgspec.Raw) -> Any:
    return msgspec.json.decode(raw) if len(raw) else None


def _string(raw: msgspec.Raw) -> str | None:
    return msgspec.json.decode(raw, type=str) if bytes(memoryview(raw)[:1]) == b'"' else None


def _name(raw: msgspec.Raw) -> str | None:
    value = _string(raw)
    return None if value is None else value[:NAME_CHARACTERS]


def _number(raw: msgspec.Raw) -> int | None:
    value = msgspec.json.decode(raw) if 0 < len(raw) <= _SCALAR_BYTES else None
    return value if type(value) is int and abs(value) <= _LARGEST else None


def _count(raw: msgspec.Raw) -> int | None:
    number = _number(raw)
    return None if number is None or number < 0 else number

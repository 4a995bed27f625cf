"""/tokenize, /detokenize and /tokenizer_info, in vLLM's formats, and /version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import TypeVar

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from inflight_contract.errors import bad_request
from inflight_engine.models.tokens.conversation import Wanted
from inflight_engine.server.bodies.chat_schema import Messages, TemplateFields, Tools, conversation
from inflight_engine.server.bodies.fields import Body, PlainText, Prompt, TokenIdList
from inflight_engine.server.http.endpoint import LONG_TEXT, encode
from inflight_engine.server.http.openai import check_model
from inflight_engine.server.http.strict_json import StrictJsonRoute, converted
from inflight_engine.server.service import ServiceOf

router = APIRouter(route_class=StrictJsonRoute)
info_router = APIRouter()

_T = TypeVar("_T")

_VERSION = version("inflight")

WANTED = Wanted(2**20)
"""Most tokens of a text that is only tokenized."""

MAX_SPELLED = 2**17
"""Most tokens whose text is asked for, or as many as the model computes at most where that are more."""


class TokenizeRequest(TemplateFields):
    """A prompt, or a conversation with the fields for its template.

    `add_special_tokens` (default true): of a prompt, as for a completion. `return_token_strs`: the tokens as the
    vocabulary has them, too.
    """

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: TokenIdList


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, http: Request, service: ServiceOf) -> Response:
    """Token ids of a prompt or of a conversation, and how many they are."""
    check_model(body.model, service)
    tokenizer, facts = service.model
    field = "prompt" if body.messages is None else "messages"
    prompt = await converted(http, lambda: _prompt(body))
    token_ids = (await encode(tokenizer, {field: prompt}, WANTED))[field]
    answer = {
        "count": len(token_ids),
        "max_model_len": facts.max_total_tokens,
        "tokens": token_ids,
        "token_strs": await _convert(tokenizer.names, token_ids) if body.return_token_strs else None,
    }
    return await _json(answer, len(token_ids))


def _prompt(body: TokenizeRequest) -> Prompt:
    """The prompt or conversation of a body.

    Raises:
        ApiError: 400, a field that goes with the other kind of prompt, or both kinds or none.
    """
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("prompt: give either a prompt or messages", "prompt")
    if body.messages is not None:
        if body.add_special_tokens:
            raise bad_request("add_special_tokens: the chat template writes those of messages", "add_special_tokens")
        return conversation(body.messages, body.tools, body)
    for field in ("tools", *TemplateFields.model_fields):
        if getattr(body, field) is not None:
            raise bad_request(f"{field}: only allowed together with messages", field)
    return PlainText(body.prompt or "", special_tokens=body.add_special_tokens is not False)


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, service: ServiceOf) -> Response:
    """Text of token ids, special tokens by their names."""
    check_model(body.model, service)
    tokenizer, facts = service.model
    largest = max(body.tokens, default=0)
    if largest >= facts.vocab_size:
        message = f"tokens: token id {largest} is not below the vocabulary size {facts.vocab_size}"
        raise bad_request(message, "tokens")
    most = max(MAX_SPELLED, facts.max_total_tokens)
    if len(body.tokens) > most:
        raise bad_request(f"tokens: must not be more than {most}", "tokens")
    return await _json({"prompt": await _convert(tokenizer.spell, body.tokens)}, len(body.tokens))


@info_router.get("/tokenizer_info")
async def tokenizer_info(service: ServiceOf) -> Response:
    """The tokenizer's settings, as its tokenizer_config.json has them."""
    tokenizer, _ = service.model
    return JSONResponse(dict(tokenizer.settings))


async def _convert(convert: Callable[[list[int]], _T], token_ids: list[int]) -> _T:
    """Convert token ids, in a thread where there are many, as `encode` does."""
    return convert(token_ids) if len(token_ids) < LONG_TEXT else await asyncio.to_thread(convert, token_ids)


async def _json(answer: object, num_tokens: int) -> Response:
    """Respond with JSON, made in a thread where there are many tokens."""
    encode = msgspec.json.encode
    content = encode(answer) if num_tokens < LONG_TEXT else await asyncio.to_thread(encode, answer)
    return Response(content, media_type="application/json")


@router.get("/version")
async def engine_version() -> Response:
    return JSONResponse({"version": _VERSION})

"""/tokenize and /detokenize, in vLLM's shapes, and /version."""

from __future__ import annotations

from importlib.metadata import version

import msgspec
from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from inflight_engine.server.chat_schema import Messages, Tools, conversation
from inflight_engine.server.endpoint import ServiceOf, encode
from inflight_engine.server.errors import bad_request
from inflight_engine.server.fields import Body, PlainText, Prompt, Text, TokenIdList
from inflight_engine.server.openai import check_model

router = APIRouter()

_VERSION = version("inflight")


class TokenizeRequest(Body):
    """A prompt, or a conversation.

    `add_special_tokens`: of a prompt, as for a completion. `add_generation_prompt`: of a conversation, up to where an
    answer would begin. `return_token_strs`: the tokens as the vocabulary has them, too.
    """

    model: str | None = None
    prompt: Text | None = None
    add_special_tokens: bool = True
    messages: Messages | None = None
    tools: Tools | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: TokenIdList


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, service: ServiceOf) -> Response:
    """Token ids of a prompt or of a conversation, and how many they are."""
    check_model(body.model, service)
    tokenizer, facts = service.model
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("prompt: give either a prompt or messages", "prompt")
    prompt: Prompt
    if body.messages is not None:
        prompt = conversation(body.messages, body.tools, continues=body.add_generation_prompt)
    else:
        prompt = PlainText(body.prompt or "", special_tokens=body.add_special_tokens)
    (token_ids,) = (await encode(tokenizer, {"prompt" if body.messages is None else "messages": prompt})).values()
    answer = {
        "count": len(token_ids),
        "max_model_len": facts.max_total_tokens,
        "tokens": token_ids,
        "token_strs": tokenizer.names(token_ids) if body.return_token_strs else None,
    }
    return Response(msgspec.json.encode(answer), media_type="application/json")


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, service: ServiceOf) -> Response:
    """Text of token ids, special tokens by their names."""
    check_model(body.model, service)
    tokenizer, facts = service.model
    largest = max(body.tokens, default=0)
    if largest >= facts.vocab_size:
        message = f"tokens: token id {largest} is not below the vocabulary size {facts.vocab_size}"
        raise bad_request(message, "tokens")
    return JSONResponse({"prompt": tokenizer.spell(body.tokens)})


@router.get("/version")
async def engine_version() -> Response:
    return JSONResponse({"version": _VERSION})

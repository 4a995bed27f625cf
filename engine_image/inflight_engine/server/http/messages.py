"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from inflight_contract.errors import ApiError
from inflight_engine.server.answers.respond import GenerationResponse
from inflight_engine.server.bodies.converted import in_words_of
from inflight_engine.server.errors import ANTHROPIC_ERRORS
from inflight_engine.server.http.endpoint import begin, encode
from inflight_engine.server.http.middleware import request_id
from inflight_engine.server.http.openai import check_model
from inflight_engine.server.http.strict_json import StrictJsonRoute, converted
from inflight_engine.server.http.tokenize import WANTED
from inflight_engine.server.messages.answer import MessagesAnswer
from inflight_engine.server.messages.requests import NAMES, CountTokensRequest, MessagesRequest
from inflight_engine.server.service import ServiceOf

router = APIRouter(route_class=StrictJsonRoute, responses=ANTHROPIC_ERRORS)


@router.post("/v1/messages")
async def messages(body: MessagesRequest, http: Request, service: ServiceOf) -> Response:
    """The next message of a conversation."""
    check_model(body.model, service)
    try:
        call = await begin(service, http, await converted(http, body.chat))
    except ApiError as error:
        raise in_words_of(NAMES, error) from None
    answer = MessagesAnswer(call, body, service.config.served_model_name, request_id(http.scope))
    return GenerationResponse(service.registry, service.heartbeats, service.channels, call, answer)


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountTokensRequest, http: Request, service: ServiceOf) -> Response:
    """Number of tokens of a conversation."""
    check_model(body.model, service)
    tokenizer, _ = service.model
    try:
        (prompt,) = await converted(http, lambda: body.counted().prompts())
        token_ids = await encode(tokenizer, {"messages": prompt}, WANTED)
    except ApiError as error:
        raise in_words_of(NAMES, error) from None
    return JSONResponse({"input_tokens": len(token_ids["messages"])})

"""POST /v1/responses: OpenAI's Responses API, without storage."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from inflight_contract.errors import ApiError
from inflight_engine.server.answers.respond import GenerationResponse
from inflight_engine.server.bodies.converted import in_words_of
from inflight_engine.server.http.endpoint import begin
from inflight_engine.server.http.middleware import request_id
from inflight_engine.server.http.openai import check_model
from inflight_engine.server.http.strict_json import StrictJsonRoute, converted
from inflight_engine.server.responses.answer import ResponsesAnswer
from inflight_engine.server.responses.requests import NAMES, ResponsesRequest
from inflight_engine.server.service import ServiceOf

router = APIRouter(route_class=StrictJsonRoute)


@router.post("/v1/responses")
async def responses(body: ResponsesRequest, http: Request, service: ServiceOf) -> Response:
    """The next items of a conversation."""
    check_model(body.model, service)
    try:
        call = await begin(service, http, await converted(http, body.chat))
    except ApiError as error:
        raise in_words_of(NAMES, error) from None
    token_bytes = service.tokenizer.token_bytes
    answer = ResponsesAnswer(call, body, service.config.served_model_name, request_id(http.scope), token_bytes)
    return GenerationResponse(service.registry, service.heartbeats, service.channels, call, answer)

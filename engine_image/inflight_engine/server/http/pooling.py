"""POST /v1/embeddings, /score and /rerank: requests that end with their prefill. Formats:
https://platform.openai.com/docs/api-reference/embeddings and https://docs.vllm.ai/en/latest/models/pooling_models/."""

from __future__ import annotations

import time
from dataclasses import replace

from fastapi import APIRouter, Request, Response

from inflight_contract.errors import bad_request
from inflight_contract.tenants import PROGRESS_HEADER
from inflight_engine.request import SamplingParams
from inflight_engine.server.answers.pooling import EmbeddingAnswer, PoolingAnswer, RerankAnswer, ScoreAnswer
from inflight_engine.server.answers.respond import GenerationResponse
from inflight_engine.server.bodies.pooling_schema import EmbeddingRequest, PoolingFields, RerankRequest, ScoreRequest
from inflight_engine.server.http.endpoint import counting_too_long, encode
from inflight_engine.server.http.middleware import request_id
from inflight_engine.server.http.openai import check_model
from inflight_engine.server.http.strict_json import StrictJsonRoute
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.generation import GenerationRequest
from inflight_engine.server.requests.inbox import Inbox
from inflight_engine.server.requests.prepare import (
    check_vocabulary,
    continued_choices,
    room_for_output,
    truncated,
    wanted_tokens,
)
from inflight_engine.server.service import Service, ServiceOf
from inflight_engine.server.telemetry.exchange import exchange_of

router = APIRouter(route_class=StrictJsonRoute)


@router.post("/v1/embeddings")
async def embeddings(body: EmbeddingRequest, http: Request, service: ServiceOf) -> Response:
    """A vector for each input."""
    check_model(body.model, service)
    pooling = service.model[0].pooling
    if body.dimensions is not None and not pooling.shortened(body.dimensions):
        possible = ", ".join(map(str, pooling.dimensions)) or (
            f"1 to {pooling.width}" if pooling.matryoshka else "none"
        )
        message = f"dimensions: this model's vectors cannot be shortened to so many numbers; possible: {possible}"
        raise bad_request(message, "dimensions")
    call = await begin(service, http, body)
    answer = EmbeddingAnswer(
        call,
        service.config.served_model_name,
        request_id(http.scope),
        body.encoding_format or "float",
        body.dimensions,
        normalized=pooling.normalized if body.use_activation is None else body.use_activation,
    )
    return _response(service, call, answer)


@router.post("/score")
@router.post("/v1/score")
async def score(body: ScoreRequest, http: Request, service: ServiceOf) -> Response:
    """How alike pairs of texts are."""
    check_model(body.model, service)
    call = await begin(service, http, body)
    answer = ScoreAnswer(call, service.config.served_model_name, request_id(http.scope), body.num_first())
    return _response(service, call, answer)


@router.post("/rerank")
@router.post("/v1/rerank")
@router.post("/v2/rerank")
async def rerank(body: RerankRequest, http: Request, service: ServiceOf) -> Response:
    """Documents in the order of how alike they are to a query."""
    check_model(body.model, service)
    call = await begin(service, http, body)
    name, top_n = service.config.served_model_name, body.top_n or 0
    return _response(service, call, RerankAnswer(call, name, request_id(http.scope), body.texts(), top_n))


def _response(service: Service, call: Call, answer: PoolingAnswer) -> Response:
    return GenerationResponse(service.registry, service.heartbeats, service.channels, call, answer)


async def begin(service: Service, http: Request, body: PoolingFields) -> Call:
    """Put the prompts into the engine's queue: all of them, or none. Of many, some enter it as others leave it.

    Raises:
        ApiError: 400, or 503 if they cannot be accepted now.
    """
    arrived, exchange, relayed = time.monotonic(), exchange_of(http.scope), http.headers.get(PROGRESS_HEADER) == "1"
    scheduling = body.scheduling(service.config.engine.classes, service.tenants.of(http.headers, exchange.request_id))
    exchange.scheduling = scheduling = replace(scheduling, predicted_tokens=None)
    prompts = body.prompts()
    continued = continued_choices(body.inflight_continuation, len(prompts), relayed=relayed)
    several = [*prompts][-1].partition(".")[0]
    at_once = min(len(prompts), service.registry.share(scheduling.service_class))
    service.registry.check_room(scheduling.service_class, at_once, several)
    tokenizer, facts = service.model
    if tokenizer.pooling.refusal:
        raise bad_request(tokenizer.pooling.refusal, code="unsupported_parameter")
    requests: list[GenerationRequest] = []
    with counting_too_long(service):
        encoded = await encode(tokenizer, prompts, wanted_tokens(body, facts), facts)
    for (field, token_ids), before in zip(encoded.items(), continued, strict=True):
        kept, param = truncated(body, token_ids, facts), field.partition(".")[0]
        check_vocabulary(kept, facts, field)
        with counting_too_long(service):
            room_for_output(len(kept), facts, field, param)
        requests.append(
            GenerationRequest(
                request_id=service.registry.new_request_id(),
                index=len(requests),
                prompt_token_ids=kept,
                sampling=SamplingParams(max_tokens=1, pooled=True),
                scheduling=scheduling,
                stop=(),
                streaming=relayed,
                prompt_only=True,
                external_id=exchange.request_id,
                relayed=relayed,
                end_reported=before.finish_reason is not None,
            )
        )
    inbox = Inbox(service.deliveries)
    generations = service.registry.submit(requests, tokenizer, arrived, inbox, several, at_once)
    num_prompt_tokens = sum(len(each.prompt_token_ids) for each in requests)
    exchange.call = call = Call(generations, inbox, num_prompt_tokens, 1, streaming=False, relayed=relayed)
    return call

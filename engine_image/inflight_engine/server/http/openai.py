"""OpenAI's endpoints: chat completions, completions, models. Formats:
https://platform.openai.com/docs/api-reference."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from inflight_contract.errors import ApiError
from inflight_engine.server.answers.openai import ChatAnswer, CompletionAnswer, Shown
from inflight_engine.server.answers.respond import GenerationResponse
from inflight_engine.server.answers.send import server_host
from inflight_engine.server.bodies.chat_schema import ChatCompletionRequest
from inflight_engine.server.bodies.schema import CompletionRequest, OpenAIFields
from inflight_engine.server.http.endpoint import begin
from inflight_engine.server.http.middleware import request_id
from inflight_engine.server.http.strict_json import StrictJsonRoute
from inflight_engine.server.service import Service, ServiceOf

router = APIRouter(route_class=StrictJsonRoute)


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatCompletionRequest, http: Request, service: ServiceOf) -> Response:
    """A conversation's next message."""
    return await _answer(body, http, service, ChatAnswer)


@router.post("/v1/completions")
async def completions(body: CompletionRequest, http: Request, service: ServiceOf) -> Response:
    """Continuations of prompts."""
    return await _answer(body, http, service, CompletionAnswer)


async def _answer(
    body: OpenAIFields, http: Request, service: Service, shape: type[ChatAnswer | CompletionAnswer]
) -> Response:
    check_model(body.model, service)
    body.check()
    call = await begin(service, http, body)
    transfer = None
    if body.decoded_elsewhere and not call.relayed:  # a relay's client learns no address of a pod
        transfer = partial(service.handover.transfer_params, server_host(http.scope))
    answer = shape(
        call,
        service.tokenizer,
        Shown(
            model=service.config.served_model_name,
            request_id=request_id(http.scope),
            fingerprint=service.fingerprint,
            service_tier=None if body.service_tier is None else call.service_class,
            created=None if body.inflight_continuation is None else body.inflight_continuation.created,
            usage=body.include_usage,
            continuous_usage=body.continuous_usage,
            token_ids=bool(body.return_token_ids),
            prompt_logprobs=body.prompt_logprobs,
            kv_transfer_params=transfer,
        ),
    )
    return GenerationResponse(service.registry, service.heartbeats, service.channels, call, answer)


@router.get("/v1/models")
async def models(service: ServiceOf) -> Response:
    """The model that is served, under each of its names."""
    return JSONResponse({"object": "list", "data": [_model(service, name) for name in _names(service)]})


@router.get("/v1/models/{name:path}")
async def model(name: str, service: ServiceOf) -> Response:
    check_model(name, service)
    return JSONResponse(_model(service, name))


def _names(service: Service) -> tuple[str, ...]:
    return service.config.served_model_names


def _model(service: Service, name: str) -> dict[str, object]:
    described = {"id": name, "object": "model", "created": service.created}
    ready, defaults = service.session.ready, service.sampling_defaults
    return {
        **described,
        "owned_by": "inflight",
        # As vLLM gives it; clients size their requests by it.
        "max_model_len": None if ready is None else ready.runner.max_model_len,
        "default_sampling_params": None if defaults is None else asdict(defaults),
    }


def check_model(name: str | None, service: Service) -> None:
    """404 for a model that is not served here; None selects the served model."""
    names = _names(service)
    if name is not None and name not in names:
        served = ", ".join(map(repr, names))
        raise ApiError(404, f"model {name!r} does not exist here; this server has {served}", "model", "model_not_found")

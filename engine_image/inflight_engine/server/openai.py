"""OpenAI's endpoints: chat completions, completions, models. Shapes: https://platform.openai.com/docs/api-reference."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from inflight_engine.server.endpoint import ServiceOf, start
from inflight_engine.server.errors import ApiError, bad_request
from inflight_engine.server.openai_answer import ChatAnswer, CompletionAnswer
from inflight_engine.server.respond import GenerationResponse
from inflight_engine.server.schema import ChatCompletionRequest, CompletionRequest, OpenAIFields
from inflight_engine.server.service import Service

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for /v1/completions."""

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatCompletionRequest, service: ServiceOf) -> Response:
    """A conversation's next message."""
    _check(body, service)
    messages = [message.plain() for message in body.messages]
    generation = await start(
        service,
        body,
        lambda tokenizer: tokenizer.encode_chat(messages),
        size=sum(len(message["content"]) for message in messages),
        max_tokens=_chat_max_tokens(body),
        default_max_tokens=None,
        prompt_field="messages",
    )
    return GenerationResponse(service, generation, ChatAnswer(service.config.served_model_name, _usage_wanted(body)))


@router.post("/v1/completions")
async def completions(body: CompletionRequest, service: ServiceOf) -> Response:
    """A prompt's continuation."""
    _check(body, service)
    prompt = body.one_prompt()
    generation = await start(
        service,
        body,
        lambda tokenizer: tokenizer.encode(prompt) if isinstance(prompt, str) else prompt,
        size=len(prompt),
        max_tokens=body.max_tokens,
        default_max_tokens=COMPLETION_MAX_TOKENS,
        prompt_field="prompt",
    )
    return GenerationResponse(
        service, generation, CompletionAnswer(service.config.served_model_name, _usage_wanted(body))
    )


@router.get("/v1/models")
async def models(service: ServiceOf) -> Response:
    """The one model that is served."""
    return JSONResponse({"object": "list", "data": [_model(service)]})


@router.get("/v1/models/{name:path}")
async def model(name: str, service: ServiceOf) -> Response:
    _check_model(name, service)
    return JSONResponse(_model(service))


def _model(service: Service) -> dict[str, object]:
    described = {"id": service.config.served_model_name, "object": "model", "created": service.created}
    ready = service.engine
    # `max_model_len` as vLLM gives it; clients size their requests by it.
    return {**described, "owned_by": "inflight", "max_model_len": None if ready is None else ready.max_model_len}


def _check(body: OpenAIFields, service: Service) -> None:
    _check_model(body.model, service)
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options: only allowed together with stream: true", "stream_options")


def _check_model(name: str | None, service: Service) -> None:
    served = service.config.served_model_name
    if name is not None and name != served:
        raise ApiError(
            404, f"model {name!r} does not exist here; this server has {served!r}", "model", "model_not_found"
        )


def _chat_max_tokens(body: ChatCompletionRequest) -> int | None:
    """`max_completion_tokens`, or `max_tokens`, its older name."""
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise bad_request("max_tokens: differs from max_completion_tokens; send one of them", "max_tokens")
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def _usage_wanted(body: OpenAIFields) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)

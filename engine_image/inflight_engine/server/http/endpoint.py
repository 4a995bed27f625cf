"""Common path of all generation endpoints: tokenize, validate, submit to the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fastapi import Request

from inflight_engine.server.answers.progress_frames import PROGRESS_HEADER
from inflight_engine.server.errors import ApiError, bad_request
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.continuation import continued_choices, earlier_of
from inflight_engine.server.requests.fields import Conversation, GenerationFields, PlainText, Prompt
from inflight_engine.server.requests.generation import GenerationRequest
from inflight_engine.server.requests.inbox import Inbox
from inflight_engine.server.requests.prepare import TOO_LONG, Tokenizer, choice_seed, prepare
from inflight_engine.server.service import Service
from inflight_engine.server.telemetry.exchange import exchange_of

LONG_TEXT = 4096
"""Characters from which tokenizing (1 to 2 ms for so many) would hold up the streams of others: it goes to a thread,
which costs about 0.1 ms."""


async def begin(service: Service, http: Request, body: GenerationFields) -> Call:
    """Converts a validated body to generations in the engine's queue, one for each prompt and sample: all of them, or
    none.

    Raises:
        ApiError: 400, or 503 if it cannot be accepted now.
    """
    arrived = time.monotonic()
    config = service.config
    exchange = exchange_of(http.scope)
    scheduling = body.scheduling(config.engine.classes, service.tenants.of(http.headers, exchange.request_id))
    exchange.scheduling = scheduling
    prompts, n = body.prompts(), body.n or 1
    relayed = http.headers.get(PROGRESS_HEADER) == "1"
    continued = continued_choices(body.inflight_continuation, len(prompts) * n, relayed=relayed)
    service.refuse_if_full(scheduling.service_class, sum(each.finish_reason is None for each in continued))
    tokenizer, facts = service.model
    named = {body.prompt_field if len(prompts) == 1 else f"{body.prompt_field}.{i}": p for i, p in enumerate(prompts)}
    token_ids = await encode(tokenizer, named)
    echoes = await _texts(tokenizer, prompts, [*token_ids.values()]) if body.echoes() else [None] * len(prompts)
    requests: list[GenerationRequest] = []
    for (field, prompt), echo in zip(token_ids.items(), echoes, strict=True):
        try:
            sampling = prepare(body, prompt, facts, field)
        except ApiError as error:
            if error.code == TOO_LONG:
                service.metrics.rejections["never_fits"] += 1
            raise
        predicted = scheduling.predicted_tokens
        # A request does not generate more than it may.
        predicted = None if predicted is None else min(predicted, sampling.max_tokens)
        for sample in range(n):
            request_id, before = service.new_request_id(), continued[len(requests)]
            earlier = earlier_of(before, len(requests), sampling, body, facts)
            drawn = body.seed is None and before.seed is None
            seed = (
                choice_seed(body.seed, sample, config.engine.seed, request_id) if before.seed is None else before.seed
            )
            requests.append(
                GenerationRequest(
                    request_id=request_id,
                    index=len(requests),
                    prompt_token_ids=prompt,
                    sampling=replace(sampling, seed=seed),
                    scheduling=replace(scheduling, predicted_tokens=predicted),
                    stop=body.stop_strings(),
                    streaming=bool(body.stream) or relayed,
                    echo=echo,
                    prompt_only=body.asked_max_tokens() == 0,
                    external_id=exchange.request_id,
                    relayed=relayed,
                    seed_drawn=relayed and drawn and sampling.temperature > 0,
                    num_reported=len(before.token_ids),
                    end_reported=before.finish_reason is not None,
                    earlier=earlier,
                )
            )
    inbox = Inbox(service.deliveries)
    generations = service.submit(requests, arrived, inbox)
    call = Call(generations, inbox, sum(map(len, token_ids.values())), n, bool(body.stream), relayed)
    exchange.call = call
    return call


async def encode(tokenizer: Tokenizer, prompts: Mapping[str, Prompt]) -> dict[str, list[int]]:
    """Token ids of prompts, by the names of their fields.

    Raises:
        ApiError: 400, one cannot be tokenized.
    """
    if sum(map(_size, prompts.values())) < LONG_TEXT:
        return _encode_all(tokenizer, prompts)
    return await asyncio.to_thread(_encode_all, tokenizer, prompts)


async def _texts(tokenizer: Tokenizer, prompts: Sequence[Prompt], token_ids: Sequence[list[int]]) -> list[str]:
    """Prompts as text: as given, or decoded from their token ids. `token_ids`: of each."""

    def texts() -> list[str]:
        return [
            prompt.text if isinstance(prompt, PlainText) else tokenizer.spell(ids)
            for prompt, ids in zip(prompts, token_ids, strict=True)
        ]

    return texts() if sum(map(len, token_ids)) < LONG_TEXT else await asyncio.to_thread(texts)


def _size(prompt: Prompt) -> int:
    """Estimate of the characters to tokenize; for tools and their calls the length of their JSON."""
    if isinstance(prompt, Conversation):
        if prompt.tools or any("tool_calls" in message for message in prompt.messages):
            return LONG_TEXT
        return sum(len(message["content"]) for message in prompt.messages)
    return len(prompt.text) if isinstance(prompt, PlainText) else 0


def _encode_all(tokenizer: Tokenizer, prompts: Mapping[str, Prompt]) -> dict[str, list[int]]:
    return {field: _encode(tokenizer, field, prompt) for field, prompt in prompts.items()}


def _encode(tokenizer: Tokenizer, field: str, prompt: Prompt) -> list[int]:
    try:
        match prompt:
            case Conversation():
                return tokenizer.encode_chat(prompt.messages, prompt.tools, continues=prompt.continues)
            case PlainText():
                return tokenizer.encode(prompt.text, special_tokens=prompt.special_tokens)
            case _:
                return prompt
    except ValueError as error:
        raise bad_request(f"{field}: {error}", field.partition(".")[0]) from None

"""Common path of all generation endpoints: tokenize, validate, submit to the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fastapi import Request

from inflight_engine.request import Scheduling
from inflight_engine.server.answers.progress_frames import PROGRESS_HEADER
from inflight_engine.server.errors import ApiError, bad_request
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.continuation import continued_choices, earlier_of
from inflight_engine.server.requests.fields import ContinuedChoice, Conversation, GenerationFields, PlainText, Prompt
from inflight_engine.server.requests.generation import GenerationRequest
from inflight_engine.server.requests.inbox import Inbox
from inflight_engine.server.requests.prepare import TOO_LONG, ModelFacts, Tokenizer, choice_seed, prepare
from inflight_engine.server.service import Service
from inflight_engine.server.telemetry.exchange import Exchange, exchange_of

LONG_TEXT = 4096
"""Characters from which tokenizing (1 to 2 ms for so many) would hold up the streams of others: it goes to a thread,
which costs about 0.1 ms."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """A body whose scheduling is known, and which the queue has room for.

    Attributes:
        relayed: a relay reads the progress of the response.
        continued: the earlier part of each choice, by index.
    """

    body: GenerationFields
    exchange: Exchange
    scheduling: Scheduling
    prompts: list[Prompt]
    num_samples: int
    relayed: bool
    continued: Sequence[ContinuedChoice]


async def begin(service: Service, http: Request, body: GenerationFields) -> Call:
    """Convert a validated body to generations in the engine's queue, one for each prompt and sample: all of them, or
    none.

    Raises:
        ApiError: 400, or 503 if it cannot be accepted now.
    """
    arrived = time.monotonic()
    checked = _check(service, http, body)
    tokenizer, facts = service.model
    fields, prompts = [body.prompt_field], checked.prompts
    if len(prompts) > 1:
        fields = [f"{body.prompt_field}.{index}" for index in range(len(prompts))]
    token_ids = await encode(tokenizer, dict(zip(fields, prompts, strict=True)))
    echoes = await _texts(tokenizer, prompts, [*token_ids.values()]) if body.echoes() else [None] * len(prompts)
    requests = _prepare(service, checked, facts, token_ids, echoes)
    inbox = Inbox(service.deliveries)
    generations = service.registry.submit(requests, tokenizer, arrived, inbox)
    num_prompt_tokens = sum(map(len, token_ids.values()))
    call = Call(generations, inbox, num_prompt_tokens, checked.num_samples, bool(body.stream), checked.relayed)
    checked.exchange.call = call
    return call


def _check(service: Service, http: Request, body: GenerationFields) -> _Checked:
    """Check what needs no tokens: class and tenant, continuation, room in the queue."""
    exchange = exchange_of(http.scope)
    tenant = service.tenants.of(http.headers, exchange.request_id)
    scheduling = exchange.scheduling = body.scheduling(service.config.engine.classes, tenant)
    prompts, num_samples = body.prompts(), body.n or 1
    relayed = http.headers.get(PROGRESS_HEADER) == "1"
    continued = continued_choices(body.inflight_continuation, len(prompts) * num_samples, relayed=relayed)
    service.registry.check_admitting()
    service.registry.check_queue(scheduling.service_class, sum(each.finish_reason is None for each in continued))
    return _Checked(body, exchange, scheduling, prompts, num_samples, relayed, continued)


def _prepare(
    service: Service,
    checked: _Checked,
    facts: ModelFacts,
    token_ids: Mapping[str, list[int]],
    echoes: Sequence[str | None],
) -> list[GenerationRequest]:
    """The request of each choice. `token_ids`: of each prompt, by the name of its field."""
    body, scheduling = checked.body, checked.scheduling
    requests: list[GenerationRequest] = []
    for (field, prompt), echo in zip(token_ids.items(), echoes, strict=True):
        try:
            sampling = prepare(body, prompt, facts, field)
        except ApiError as error:
            if error.code == TOO_LONG:
                service.metrics.rejected("never_fits")
            raise
        if checked.scheduling.predicted_tokens is not None:  # a request does not generate more than it may
            predicted = min(checked.scheduling.predicted_tokens, sampling.max_tokens)
            scheduling = replace(checked.scheduling, predicted_tokens=predicted)
        for sample in range(checked.num_samples):
            index = len(requests)
            request_id, before = service.registry.new_request_id(), checked.continued[index]
            drawn = body.seed is None and before.seed is None
            seed = before.seed
            if seed is None:
                seed = choice_seed(body.seed, sample, service.config.engine.seed, request_id)
            requests.append(
                GenerationRequest(
                    request_id=request_id,
                    index=index,
                    prompt_token_ids=prompt,
                    sampling=replace(sampling, seed=seed),
                    scheduling=scheduling,
                    stop=body.stop_strings(),
                    streaming=bool(body.stream) or checked.relayed,
                    echo=echo,
                    prompt_only=body.asked_max_tokens() == 0,
                    external_id=checked.exchange.request_id,
                    relayed=checked.relayed,
                    seed_drawn=checked.relayed and drawn and sampling.temperature > 0,
                    num_reported=len(before.token_ids),
                    end_reported=before.finish_reason is not None,
                    earlier=earlier_of(before, index, sampling, body, facts),
                )
            )
    return requests


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

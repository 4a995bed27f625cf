"""Common path of all generation endpoints: tokenize, validate, submit to the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fastapi import Request

from inflight_contract.errors import ApiError, bad_request
from inflight_contract.tenants import PROGRESS_HEADER
from inflight_engine.formats.grammar import answer_header
from inflight_engine.formats.parser import Parsing
from inflight_engine.grammars.sources import behind
from inflight_engine.models.tokens.conversation import Conversation, TooManyTokensError, Wanted
from inflight_engine.request import Thinking
from inflight_engine.server.bodies.fields import ContinuedChoice, GenerationFields, PlainText, Prompt
from inflight_engine.server.http.strict_json import converted
from inflight_engine.server.kv_events import names
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.generation import GenerationRequest
from inflight_engine.server.requests.inbox import Inbox
from inflight_engine.server.requests.prepare import (
    TOO_LONG,
    ModelFacts,
    allowed_tokens,
    banned_sequences,
    choice_seed,
    continued_choices,
    earlier_of,
    num_unfinished,
    prepare,
    stop_reasons,
    too_long,
    truncated,
    wanted_tokens,
)
from inflight_engine.server.service import Service
from inflight_engine.server.telemetry.exchange import Exchange, exchange_of

if TYPE_CHECKING:
    from inflight_engine.models.tokens.tokenizer import Tokenizer  # imports the tokenizers library

LONG_TEXT = 4096
"""Characters from which tokenizing (1 to 2 ms for so many) would hold up the streams of others: it goes to a thread,
which costs about 0.1 ms."""

_PROMPT_END = 16
"""Tokens at the end of a prompt, which show whether it ends inside of reasoning."""


async def begin(service: Service, http: Request, body: GenerationFields) -> Call:
    """Convert a validated body to generations in the engine's queue, one for each prompt and sample: all of them, or
    none.

    Raises:
        ApiError: 400, or 503 if it cannot be accepted now.
    """
    arrived, exchange, relayed = time.monotonic(), exchange_of(http.scope), http.headers.get(PROGRESS_HEADER) == "1"
    exchange.scheduling = body.scheduling(
        service.config.engine.classes, service.tenants.of(http.headers, exchange.request_id)
    )
    prompts, n = await converted(http, body.prompts), body.n or 1
    continuation, num_choices = body.inflight_continuation, len(prompts) * n
    # First: a body has room for a million prompts, and each may have many choices.
    makes_many = "n" if n > 1 else body.prompt_field
    service.registry.check_room(
        exchange.scheduling.service_class, num_unfinished(continuation, num_choices), makes_many
    )
    continued = continued_choices(continuation, num_choices, relayed=relayed)
    if continuation is not None and not service.tenants.believes_progress(http.headers, exchange.request_id):
        exchange.scheduling = replace(exchange.scheduling, resumes=False)
    tokenizer, facts = service.model
    fields = [body.prompt_field if len(prompts) == 1 else f"{body.prompt_field}.{i}" for i in range(len(prompts))]
    with counting_too_long(service):
        wanted = wanted_tokens(body, facts)
        token_ids = await encode(tokenizer, dict(zip(fields, prompts, strict=True)), wanted, facts)
    if body.truncate_prompt_tokens is not None or body.truncation_side is not None:
        token_ids = {field: truncated(body, each, facts) for field, each in token_ids.items()}
        prompts = [*token_ids.values()]
    last = [*token_ids.values()][-1]
    parsing = await converted(http, lambda: body.parsing(service.formats, lambda: tokenizer.spell(last[-_PROMPT_END:])))
    grammar = await _grammar(service, http, body, tokenizer, parsing, exchange.scheduling.tenant)
    thinking = None
    if parsing is not None and service.thinking is not None:
        thinking = replace(service.thinking, begun=parsing.thinks, budget=body.thinking_budget())
    echoes = await _texts(tokenizer, prompts, [*token_ids.values()]) if body.echoes() else [None] * len(prompts)
    banned: tuple[tuple[int, ...], ...] = ()
    if body.bad_words:  # a thousand take tens of ms
        encode_plain = partial(tokenizer.encode, special_tokens=False)
        banned = await asyncio.to_thread(banned_sequences, body.bad_words, encode_plain, facts)
    allowed = allowed_tokens(body, facts)
    requests = _requests(
        service,
        body,
        exchange,
        facts,
        token_ids,
        echoes,
        continued,
        grammar,
        banned,
        allowed,
        parsing,
        thinking,
        relayed=relayed,
    )
    num_tokens = sum(map(len, token_ids.values()))
    blocks = await _blocks(service, requests[0], num_tokens) if relayed else b""
    inbox = Inbox(service.deliveries)
    generations = service.registry.submit(requests, tokenizer, arrived, inbox, body.prompt_field)
    service.counts.num_samples.observe(n, len(prompts))
    cached = None if continuation is None else continuation.cached_tokens
    call = Call(generations, inbox, num_tokens, n, bool(body.stream), relayed, blocks, cached)
    exchange.call = call
    return call


async def _blocks(service: Service, first: GenerationRequest, num_tokens: int) -> bytes:
    """Names of the blocks of the first choice's prompt, for the relay's note; empty: no events tell of them."""
    ready, engine = service.session.ready, service.config.engine
    finds = engine.block_events and engine.prefix_caching and first.sampling.prompt_logprobs is None
    if not finds or ready is None:
        return b""
    named = partial(names.note, first.prompt_token_ids, num_tokens, ready.runner.block_size, first.scheduling)
    return named() if len(first.prompt_token_ids) < LONG_TEXT else await asyncio.to_thread(named)


async def _grammar(
    service: Service,
    http: Request,
    body: GenerationFields,
    tokenizer: Tokenizer,
    parsing: Parsing | None,
    tenant: str,
) -> str | None:
    """The grammar of the answers, serialized; None: they have none."""
    if parsing is not None and parsing.format is not None:  # the grammar of hundreds of tools takes tens of ms
        calls = await asyncio.to_thread(body.bound_calls, parsing, tokenizer.special_id)
        if calls is not None:
            return await service.grammars.check(calls, tenant)
    source = await converted(http, lambda: body.grammar(tokenizer.is_special))
    if source is None:
        return None
    grammar = await service.grammars.check(source, tenant)
    return behind(answer_header(tokenizer.special_id), grammar) if parsing is not None and parsing.channels else grammar


def _requests(
    service: Service,
    body: GenerationFields,
    exchange: Exchange,
    facts: ModelFacts,
    token_ids: Mapping[str, list[int]],
    echoes: Sequence[str | None],
    continued: Sequence[ContinuedChoice],
    grammar: str | None,
    banned: tuple[tuple[int, ...], ...],
    allowed: bytes,
    parsing: Parsing | None,
    thinking: Thinking | None,
    *,
    relayed: bool,
) -> list[GenerationRequest]:
    """The request of each choice. `token_ids`: of each prompt, by the name of its field."""
    assert exchange.scheduling is not None
    bound = None if grammar is None and body.thinking_budget() is None else thinking
    scheduling, choices = exchange.scheduling, iter(enumerate(continued))
    requests: list[GenerationRequest] = []
    kv_source = service.handover.read_source(body.source())
    shown_ids = frozenset() if parsing is None else service.shown_ids
    if body.skip_special_tokens is False:
        shown_ids = service.tokenizer.all_special_ids
    for (field, prompt), echo in zip(token_ids.items(), echoes, strict=True):
        with counting_too_long(service):
            sampling = prepare(body, prompt, facts, field)
        predicted = scheduling.predicted_tokens
        if predicted is not None:  # a request does not generate more than it may
            predicted = min(predicted, sampling.max_tokens)
        for sample in range(body.n or 1):
            index, before = next(choices)
            request_id, seed = service.registry.new_request_id(), before.seed
            if seed is None:
                seed = choice_seed(body.seed, sample, service.seed, request_id)
            drawn = body.seed is None and before.seed is None and sampling.temperature > 0
            requests.append(
                GenerationRequest(
                    request_id=request_id,
                    index=index,
                    prompt_token_ids=prompt,
                    sampling=replace(
                        sampling, seed=seed, grammar=grammar, thinking=bound, bad_words=banned, allowed_tokens=allowed
                    ),
                    scheduling=replace(scheduling, predicted_tokens=predicted),
                    stop=body.stop_strings(),
                    streaming=bool(body.stream) or relayed,
                    echo=echo,
                    prompt_only=body.asked_max_tokens() == 0,
                    external_id=exchange.request_id,
                    relayed=relayed,
                    seed_drawn=relayed and drawn,
                    num_reported=len(before.token_ids),
                    end_reported=before.finish_reason is not None,
                    earlier=earlier_of(before, index, sampling, body, facts),
                    parsing=parsing,
                    thinking=thinking,
                    shown_ids=shown_ids,
                    stop_reasons=stop_reasons(body, facts),
                    with_stop=bool(body.include_stop_str_in_output),
                    kv_source=kv_source,
                )
            )
    return requests


@contextmanager
def counting_too_long(service: Service) -> Iterator[None]:
    """Count the refusal of a request that can never fit."""
    try:
        yield
    except ApiError as error:
        if error.code == TOO_LONG:
            service.counts.rejections["never_fits"] += 1
        raise


async def encode(
    tokenizer: Tokenizer, prompts: Mapping[str, Prompt], wanted: Wanted, facts: ModelFacts | None = None
) -> dict[str, list[int]]:
    """Token ids of prompts, by the names of their fields.

    Args:
        wanted: of each text.
        facts: of the model that is to compute them; None: they are only tokenized.

    Raises:
        ApiError: 400, one cannot be tokenized, or has more tokens than are wanted.
    """
    if sum(map(_size, prompts.values())) < LONG_TEXT:
        return _encode_all(tokenizer, prompts, wanted, facts)
    return await asyncio.to_thread(_encode_all, tokenizer, prompts, wanted, facts)


async def _texts(tokenizer: Tokenizer, prompts: Sequence[Prompt], token_ids: Sequence[list[int]]) -> list[str]:
    """Prompts as text: as given, or decoded from their token ids. `token_ids`: of each."""

    def texts() -> list[str]:
        return [
            prompt.text if isinstance(prompt, PlainText) else tokenizer.spell(ids)
            for prompt, ids in zip(prompts, token_ids, strict=True)
        ]

    return texts() if sum(map(len, token_ids)) < LONG_TEXT else await asyncio.to_thread(texts)


def _size(prompt: Prompt) -> int:
    """Estimate of the characters to tokenize; of tools, their calls and arguments of the
    template the most: their JSON can be long."""
    if isinstance(prompt, Conversation):
        if prompt.tools or prompt.arguments or any("tool_calls" in message for message in prompt.messages):
            return LONG_TEXT
        return sum(len(message["content"]) + len(message.get("reasoning", "")) for message in prompt.messages)
    return len(prompt.text) if isinstance(prompt, PlainText) else 0


def _encode_all(
    tokenizer: Tokenizer, prompts: Mapping[str, Prompt], wanted: Wanted, facts: ModelFacts | None
) -> dict[str, list[int]]:
    return {field: _encode(tokenizer, field, prompt, wanted, facts) for field, prompt in prompts.items()}


def _encode(tokenizer: Tokenizer, field: str, prompt: Prompt, wanted: Wanted, facts: ModelFacts | None) -> list[int]:
    param = field.partition(".")[0]
    try:
        match prompt:
            case Conversation():
                return tokenizer.encode_chat(prompt, wanted)
            case PlainText():
                return tokenizer.encode(prompt.text, special_tokens=prompt.special_tokens, wanted=wanted)
            case _:
                return prompt
    except TooManyTokensError as error:
        if facts is not None:
            raise too_long(error.count, facts, field, param) from None
        raise bad_request(f"{field}: {error}", param, TOO_LONG) from None
    except ValueError as error:
        raise bad_request(f"{field}: {error}", param) from None

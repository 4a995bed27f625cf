"""Continuation of responses that another replica started: the field `inflight_continuation` (docs/engine.md, Progress
frames)."""

from __future__ import annotations

from collections.abc import Sequence

from inflight_engine.request import FinishReason, SamplingParams
from inflight_engine.server.errors import ApiError, bad_request
from inflight_engine.server.requests.fields import Continuation, ContinuedChoice, GenerationFields
from inflight_engine.server.requests.generation import Earlier
from inflight_engine.server.requests.prepare import ModelFacts

FIELD = "inflight_continuation"

_NEW = ContinuedChoice(token_ids=[])


def continued_choices(continuation: Continuation | None, count: int, *, relayed: bool) -> Sequence[ContinuedChoice]:
    """The earlier part of each of a request's `count` choices.

    Raises:
        ApiError: 400, the request does not report its progress, or the number of choices differs.
    """
    if continuation is None:
        return [_NEW] * count
    if not relayed:
        raise bad_request(f"{FIELD}: only allowed together with the header X-Inflight-Progress: 1", FIELD)
    if len(continuation.choices) != count:
        raise bad_request(
            f"{FIELD}.choices: has {len(continuation.choices)} choices, and the request asks for {count}", FIELD
        )
    return continuation.choices


def earlier_of(
    before: ContinuedChoice, index: int, sampling: SamplingParams, body: GenerationFields, facts: ModelFacts
) -> Earlier | None:
    """The retained part of a choice. None: it restarts. So does a non-streamed response with log-probabilities, as
    those of its earlier tokens are unknown.

    Args:
        before: the choice with this index.

    Raises:
        ApiError: 400, a token is not in the vocabulary, or there are more than `max_tokens`.
    """
    token_ids = before.token_ids
    if max(token_ids, default=0) >= facts.vocab_size:
        raise _wrong(index, f"token id {max(token_ids)} is not below the vocabulary size {facts.vocab_size}")
    most = 0 if body.asked_max_tokens() == 0 else sampling.max_tokens
    if len(token_ids) > most:
        raise _wrong(index, f"has {len(token_ids)} tokens, and max_tokens is {most}")
    streamed = bool(body.stream)
    if not streamed and (sampling.logprobs is not None or sampling.prompt_logprobs is not None):
        return None
    if not token_ids and before.finish_reason is None:
        return None
    reason = None if before.finish_reason is None else FinishReason(before.finish_reason)
    return Earlier(token_ids, reason, written=streamed)


def _wrong(index: int, why: str) -> ApiError:
    return bad_request(f"{FIELD}.choices.{index}.token_ids: {why}", FIELD)

"""Converts a validated body to engine input: token ids, sampling parameters, and a length that fits."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from inflight_contract.errors import ApiError, bad_request
from inflight_engine.messages import EngineReady
from inflight_engine.models.checkpoints.generation_config import SamplingDefaults
from inflight_engine.models.tokens.conversation import Wanted
from inflight_engine.request import FinishReason, SamplingParams, token_mask
from inflight_engine.server.bodies.fields import (
    Continuation,
    ContinuedChoice,
    GenerationFields,
    TruncationFields,
)
from inflight_engine.server.requests.generation import Earlier

if TYPE_CHECKING:
    from inflight_engine.models.tokens.tokenizer import Tokenizer  # imports the tokenizers library

_UINT63 = 2**63 - 1

MAX_BANNED_TOKENS = 16_384
"""Bound of the words in `bad_words` together: eight for each form of each."""

TOO_LONG = "context_length_exceeded"
"""OpenAI's code for a request that can never fit."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Attributes:
    eos_token_ids: of those that the model's files name, the ones in its vocabulary.
    max_total_tokens: longest prompt plus output: the model's context, or the whole KV cache where that is less.
    defaults: of requests that do not say how to sample.
    """

    eos_token_ids: tuple[int, ...]
    vocab_size: int
    max_total_tokens: int
    defaults: SamplingDefaults

    @classmethod
    def of(cls, tokenizer: Tokenizer, ready: EngineReady) -> ModelFacts:
        runner = ready.runner
        # Some models' files name -1, or a token that was added to the tokenizer alone.
        eos_token_ids = tuple(each for each in tokenizer.eos_token_ids if 0 <= each < runner.vocab_size)
        return cls(eos_token_ids, runner.vocab_size, runner.max_model_len, tokenizer.sampling_defaults)


def prepare(fields: GenerationFields, prompt_token_ids: list[int], facts: ModelFacts, field: str) -> SamplingParams:
    """Check lengths and token ids, and fill in defaults; the seed is left to `choice_seed`, and the values that all
    prompts share to `allowed_tokens` and `banned_sequences`.

    Args:
        field: what this prompt is called in the body.

    Raises:
        ApiError: 400, it can never fit or a token is not in the vocabulary.
    """
    check_vocabulary(prompt_token_ids, facts, field)
    defaults = facts.defaults
    logit_bias = tuple((int(token_id), float(bias)) for token_id, bias in (fields.logit_bias or {}).items())
    check_vocabulary([token_id for token_id, _ in logit_bias], facts, "logit_bias")
    named_logprobs = tuple(dict.fromkeys(fields.named_logprobs()))
    check_vocabulary(named_logprobs, facts, "logprob_token_ids")
    max_tokens = _max_tokens(fields, len(prompt_token_ids), facts, field)
    return SamplingParams(
        # The engine's requests sample at least one token; for a prompt-only request it is not returned.
        max_tokens=max(1, max_tokens),
        min_tokens=_min_tokens(fields, max_tokens),
        temperature=_number(fields.temperature, defaults.temperature),
        top_p=_number(fields.top_p, defaults.top_p),
        # The vocabulary keeps all; a larger number need not fit where the engine stores it.
        top_k=min(max(defaults.top_k if fields.top_k is None else fields.top_k, 0), facts.vocab_size),
        min_p=_number(fields.min_p, defaults.min_p),
        repetition_penalty=_number(fields.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_number(fields.presence_penalty, 0.0),
        frequency_penalty=_number(fields.frequency_penalty, 0.0),
        logit_bias=logit_bias,
        stop_token_ids=_stop_token_ids(fields, facts),
        logprobs=fields.num_logprobs(),
        logprob_token_ids=named_logprobs,
        prompt_logprobs=fields.num_prompt_logprobs(),
    )


def choice_seed(given: int | None, sample: int, base: int, request_id: int) -> int:
    """The random stream of one answer: the given seed plus its number among the prompt's `n`, or one of its own."""
    return seed_for(base, request_id) if given is None else (given + sample) & _UINT63


def _number(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def room_for_output(num_prompt: int, facts: ModelFacts, field: str, param: str) -> int:
    """Tokens of output that fit behind a prompt, at least one.

    Args:
        field, param: what the prompt and its field are called in the body.

    Raises:
        ApiError: 400, there is no prompt, or no room.
    """
    if num_prompt == 0:
        raise bad_request(f"{field}: must hold at least one token", param)
    left = facts.max_total_tokens - num_prompt
    if left < 1:
        raise too_long(num_prompt, facts, field, param)
    return left


def too_long(num_prompt: int | None, facts: ModelFacts, field: str, param: str) -> ApiError:
    """Make the error of a prompt that leaves no room for output.

    Args:
        num_prompt: its tokens; None: they were not counted to the end.
        field, param: as of `room_for_output`.
    """
    tokens = f"more than {facts.max_total_tokens - 1}" if num_prompt is None else num_prompt
    message = f"{field}: {tokens} prompt tokens and at least one of output do not fit; {_bound(facts)}"
    return bad_request(message, param, TOO_LONG)


def _bound(facts: ModelFacts) -> str:
    most = facts.max_total_tokens
    return f"this server takes at most {most} tokens in all (--max-model-len and the KV cache bound it)"


def _max_tokens(fields: GenerationFields, num_prompt: int, facts: ModelFacts, field: str) -> int:
    left = room_for_output(num_prompt, facts, field, fields.prompt_field)
    asked = fields.asked_max_tokens()
    if asked is None:
        asked = left if fields.default_max_tokens is None else min(fields.default_max_tokens, left)
    if fields.cuts_max_tokens:
        asked = min(asked, left)
    if asked > left:
        raise bad_request(
            f"{fields.limit_field}: {num_prompt} prompt tokens leave room for {left} of output, not {asked}; "
            f"{_bound(facts)}",
            fields.limit_field,
            TOO_LONG,
        )
    return asked if facts.defaults.max_tokens is None else min(asked, facts.defaults.max_tokens)


def _min_tokens(fields: GenerationFields, max_tokens: int) -> int:
    asked = fields.min_tokens or 0
    if asked > max_tokens:
        raise bad_request(f"min_tokens: {asked} is more than max_tokens, which is {max_tokens}", "min_tokens")
    return asked


def _stop_token_ids(fields: GenerationFields, facts: ModelFacts) -> tuple[int, ...]:
    asked = tuple(fields.stop_token_ids or ())
    check_vocabulary(asked, facts, "stop_token_ids")
    return tuple(dict.fromkeys(asked if fields.ignore_eos else (*facts.eos_token_ids, *asked)))


def stop_reasons(fields: GenerationFields, facts: ModelFacts) -> frozenset[int]:
    """Tokens that are the `stop_reason` of answers which end with them: not the model's end-of-sequence tokens."""
    asked = frozenset(fields.stop_token_ids or ())
    return asked if fields.ignore_eos else asked.difference(facts.eos_token_ids)


def allowed_tokens(fields: GenerationFields, facts: ModelFacts) -> bytes:
    """Value of `SamplingParams.allowed_tokens`. A list as long as a vocabulary takes about 3 ms.

    Raises:
        ApiError: 400, a token is not in the vocabulary, or none may be sampled.
    """
    asked = fields.allowed_token_ids
    if not asked:
        return b""
    check_vocabulary(asked, facts, "allowed_token_ids")
    token_ids = np.frombuffer(array("i", asked), np.int32)
    if fields.min_tokens and np.isin(token_ids, _stop_token_ids(fields, facts)).all():
        raise bad_request(
            "allowed_token_ids: all of them end the answer, which min_tokens forbids", "allowed_token_ids"
        )
    return token_mask(token_ids)


def wanted_tokens(fields: TruncationFields, facts: ModelFacts) -> Wanted:
    """Tokens of a prompt that are looked at: what `truncated` keeps, or what fits beside one of output."""
    asked, most = fields.truncate_prompt_tokens, max(0, facts.max_total_tokens - 1)
    if asked is None:
        return Wanted(most)
    return Wanted(most if asked < 0 else min(asked, most), "left" if _keeps_end(fields) else "right")


def _keeps_end(fields: TruncationFields) -> bool:
    return fields.keeps_end if fields.truncation_side is None else fields.truncation_side == "left"


def truncated(fields: TruncationFields, token_ids: list[int], facts: ModelFacts) -> list[int]:
    """The tokens of a prompt that `truncate_prompt_tokens` keeps.

    Raises:
        ApiError: 400, none, or more than there can be.
    """
    asked, most = fields.truncate_prompt_tokens, facts.max_total_tokens - 1
    if asked is None:
        if fields.truncation_side is not None:
            raise bad_request("truncation_side: needs truncate_prompt_tokens", "truncation_side")
        return token_ids
    if asked == 0:
        raise bad_request("truncate_prompt_tokens: must be at least 1, or -1", "truncate_prompt_tokens")
    if asked > most:
        message = f"truncate_prompt_tokens: {asked} is more than the {most} tokens that fit beside one of output"
        raise bad_request(message, "truncate_prompt_tokens")
    kept = most if asked < 0 else asked
    if len(token_ids) <= kept:
        return token_ids
    return token_ids[len(token_ids) - kept :] if _keeps_end(fields) else token_ids[:kept]


def banned_sequences(
    words: Sequence[str], encode: Callable[[str], list[int]], facts: ModelFacts
) -> tuple[tuple[int, ...], ...]:
    """Value of `SamplingParams.bad_words`: each word as vLLM tokenizes it, with a space before it and without, where
    the former differs in its first token alone.

    Args:
        encode: tokenizes a text as it stands.

    Raises:
        ApiError: 400, a word has no tokens, or they have too many together: every choice is sent with all of them.
    """
    sequences = []
    for index, word in enumerate(words):
        plain, spaced = encode(word.lstrip()), encode(f" {word.lstrip()}")
        if not plain:
            raise bad_request(f"bad_words.{index}: must hold at least one token", "bad_words")
        sequences.append(tuple(plain))
        if spaced and spaced[0] != plain[0] and len(spaced) == len(plain):
            sequences.append(tuple(spaced))
    if sum(map(len, sequences)) > MAX_BANNED_TOKENS:
        raise bad_request(f"bad_words: have more than {MAX_BANNED_TOKENS} tokens in all", "bad_words")
    check_vocabulary([max(each) for each in sequences], facts, "bad_words")
    return tuple(dict.fromkeys(sequences))


def check_vocabulary(token_ids: Sequence[int], facts: ModelFacts, field: str) -> None:
    largest = max(token_ids, default=0)
    if largest >= facts.vocab_size:
        raise bad_request(
            f"{field}: token id {largest} is not below the vocabulary size {facts.vocab_size}", field.partition(".")[0]
        )


def seed_for(base: int, request_id: int) -> int:
    """The random stream of a request that brings no seed: splitmix64 of the engine's seed and the request's number.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
    """
    mask = 2**64 - 1
    z = (base + (request_id + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) & _UINT63


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


def num_unfinished(continuation: Continuation | None, count: int) -> int:
    """How many of a request's `count` choices an engine has to compute."""
    if continuation is None:
        return count
    return sum(each.finish_reason is None for each in continuation.choices)


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

"""From a checked body to what the engine needs: token ids, sampling parameters, and a length that can fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from inflight_engine.request import SamplingParams
from inflight_engine.server.errors import bad_request
from inflight_engine.server.generation import Detokenizer, GenerationRequest
from inflight_engine.server.schema import OpenAIFields, SamplingFields

_UINT63 = 2**63 - 1


class Tokenizer(Protocol):
    """What the API process uses of the model's tokenizer."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]: ...

    def detokenizer(self, prompt_token_ids: Sequence[int]) -> Detokenizer: ...


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Attributes:
    max_total_tokens: longest prompt plus output: the model's context, or the whole KV cache where that is less.
    """

    eos_token_ids: tuple[int, ...]
    vocab_size: int
    max_total_tokens: int


def prepare(
    fields: SamplingFields,
    prompt_token_ids: list[int],
    facts: ModelFacts,
    *,
    max_tokens: int | None,
    default_max_tokens: int | None,
    default_seed: int,
    prompt_field: str,
) -> GenerationRequest:
    """Check lengths and fill in defaults.

    Args:
        max_tokens: what the client asked for.
        default_max_tokens: when it asked for none, and more of the context is left; None takes all that is left.
        prompt_field: what the prompt is called in this body.

    Raises:
        ApiError: 400, it can never fit or a token is not in the vocabulary.
    """
    num_prompt = len(prompt_token_ids)
    if num_prompt == 0:
        raise bad_request(f"{prompt_field}: must hold at least one token", prompt_field)
    _check_vocabulary(prompt_token_ids, facts, prompt_field)
    left = facts.max_total_tokens - num_prompt
    if left < 1:
        raise bad_request(
            f"{prompt_field}: {num_prompt} prompt tokens and at least one of output do not fit; " + _bound(facts),
            prompt_field,
            "context_length_exceeded",
        )
    if max_tokens is not None and max_tokens > left:
        raise bad_request(
            f"max_tokens: {num_prompt} prompt tokens leave room for {left} of output, not {max_tokens}; "
            + _bound(facts),
            "max_tokens",
            "context_length_exceeded",
        )
    if max_tokens is None:
        max_tokens = left if default_max_tokens is None else min(default_max_tokens, left)
    return GenerationRequest(
        prompt_token_ids=prompt_token_ids,
        sampling=SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if fields.temperature is None else float(fields.temperature),
            top_p=1.0 if fields.top_p is None else float(fields.top_p),
            # The vocabulary keeps all; a larger number need not fit where the engine stores it.
            top_k=min(max(fields.top_k or 0, 0), facts.vocab_size),
            seed=default_seed if fields.seed is None else fields.seed & _UINT63,
            stop_token_ids=_stop_token_ids(fields, facts),
        ),
        stop=fields.stop_strings(),
        streaming=bool(fields.stream),
    )


def _bound(facts: ModelFacts) -> str:
    return (
        f"this server takes at most {facts.max_total_tokens} tokens in all (--max-model-len and the KV cache bound it)"
    )


def _stop_token_ids(fields: SamplingFields, facts: ModelFacts) -> tuple[int, ...]:
    if not isinstance(fields, OpenAIFields):
        return facts.eos_token_ids
    asked = tuple(fields.stop_token_ids or ())
    _check_vocabulary(asked, facts, "stop_token_ids")
    return tuple(dict.fromkeys(asked if fields.ignore_eos else (*facts.eos_token_ids, *asked)))


def _check_vocabulary(token_ids: Sequence[int], facts: ModelFacts, field: str) -> None:
    largest = max(token_ids, default=0)
    if largest >= facts.vocab_size:
        raise bad_request(f"{field}: token id {largest} is not below the vocabulary size {facts.vocab_size}", field)


def seed_for(base: int, request_id: int) -> int:
    """The random stream of a request that brings no seed: splitmix64 of the engine's seed and the request's number.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
    """
    mask = 2**64 - 1
    z = (base + (request_id + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) & _UINT63

"""Output of a runner for one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from inflight_engine.request import ForcedRun, TokenIds


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one sampled token, natural logarithm, for a request that asked for them.

    Attributes:
        logprob: of the sampled token.
        top_token_ids, top_logprobs: the likeliest tokens, likeliest first, as many as `SamplingParams.logprobs`.
    """

    slot: int
    logprob: float
    top_token_ids: list[int]
    top_logprobs: list[float]


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of n consecutive tokens of a prompt, each after those before it, natural logarithm, for a
    request that asked for them. Little-endian bytes.

    Attributes:
        first: index of the first of them in the prompt, at least 1.
        logprobs: float32 [n].
        ranks: int32 [n]: places among all tokens by falling log-probability, then by rising id; the first is 1.
        top_token_ids, top_logprobs: int32 and float32 [n, count]: the likeliest tokens, likeliest first, as many as
            `SamplingParams.prompt_logprobs`.
    """

    slot: int
    first: int
    logprobs: bytes
    ranks: bytes
    top_token_ids: bytes
    top_logprobs: bytes


class Pooled(msgspec.Struct, frozen=True, array_like=True):
    """The hidden state of the last token of a prompt, after the final norm: float32 little-endian bytes."""

    slot: int
    vector: bytes


class GrammarEnd(NamedTuple):
    """A slot's text ends with its latest token, by its grammar or its rules of tokens. `error`: why no token can
    follow; empty: the text is complete."""

    slot: int
    error: str


class SharedBlocks(NamedTuple):
    """Blocks of the KV cache in a file in memory, which other processes of this user can open.

    Attributes:
        num_bytes: of the blocks; the file may be longer.
        checksums: one for each block.
    """

    path: str
    num_bytes: int
    checksums: list[int]


class StepOutput(NamedTuple):
    """Results of a step that succeeded.

    Attributes:
        token_ids: int32, one for each of `plan.sampled_slots`.
        logprobs: log-probabilities for the slots that asked for them.
        failed_slots: slots without a result, as there was no memory for their chunk or for the log-probabilities that
            they asked for; their token, if they have one, means nothing.
        failed_loads: slots for which something else was copied in than was stored, or nothing; their token means
            nothing.
        prompt_logprobs: log-probabilities of chunks whose requests asked for them.
        out_of_memory: an attempt to compute the step had no memory.
        pooled: hidden states of prompts whose requests asked for them.
        grammar_ends: slots whose grammar allows no token after this one.
        forced: the tokens that follow in slots whose grammar leaves no choice.
    """

    token_ids: TokenIds
    logprobs: list[TokenLogprobs]
    failed_slots: tuple[int, ...] = ()
    prompt_logprobs: Sequence[PromptLogprobs] = ()
    out_of_memory: bool = False
    grammar_ends: Sequence[GrammarEnd] = ()
    pooled: Sequence[Pooled] = ()
    forced: Sequence[ForcedRun] = ()
    failed_loads: tuple[int, ...] = ()

"""What a runner returns for one step."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from inflight_engine.request import TokenIds


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


class StepOutput(NamedTuple):
    """What a step that succeeded has computed.

    Attributes:
        token_ids: int32, one for each of `plan.sampled_slots`.
        logprobs: for those slots that asked for them.
        failed_slots: sampled slots for which there was no memory to compute what they alone asked for.
        uncomputed_slots: slots whose chunk there was no memory to compute; their token, if they have one, is 0.
        out_of_memory: whether some attempt to compute the step had no memory.
    """

    token_ids: TokenIds
    logprobs: list[TokenLogprobs]
    failed_slots: tuple[int, ...] = ()
    uncomputed_slots: tuple[int, ...] = ()
    out_of_memory: bool = False

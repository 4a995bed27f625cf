"""The requests of a simulation: arrival times, lengths of prompt and output, and shared prefixes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from inflight_engine.request import TokenIds

SHARED_BLOCK_TOKENS = 512
"""Tokens that one of Mooncake's hash ids stands for."""
OUTPUT_TOKEN = -1
"""Token id of every generated token. No prompt has it: tokens of hash ids are 0 or more, all others below it."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that will arrive.

    Attributes:
        arrival_s: seconds on the simulation's clock.
        prompt_tokens, output_tokens: at least 1 each.
        service_class: name of its class; empty: the default one.
        priority: for the `priority` policy; smaller is earlier.
        hash_ids: an id for each `shared_block_tokens` tokens of the prompt; requests whose lists start alike share that
            prefix. Empty: the prompt shares nothing.
        shared_block_tokens: tokens that a hash id stands for; not a whole number once prompts are scaled.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    service_class: str = ""
    tenant: str = ""
    priority: int = 0
    hash_ids: tuple[int, ...] = ()
    shared_block_tokens: float = SHARED_BLOCK_TOKENS

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Scaling:
    """Transformations of a trace, applied in this order.

    Attributes:
        duration_s: keep requests of the first so many seconds of the trace, counted from its first; None: all.
        every: keep the first of each `every` requests.
        prompt, output: factors of token counts.
        speed: factor of the arrival rate.
    """

    duration_s: float | None = None
    every: int = 1
    prompt: float = 1.0
    output: float = 1.0
    speed: float = 1.0


def scaled(arrivals: Sequence[Arrival], scaling: Scaling) -> list[Arrival]:
    """Sorts by arrival; simultaneous requests keep the file's order."""
    in_order = sorted(arrivals, key=lambda arrival: arrival.arrival_s)
    if scaling.duration_s is not None:
        end = in_order[0].arrival_s + scaling.duration_s
        in_order = [arrival for arrival in in_order if arrival.arrival_s < end]
    return [
        replace(
            arrival,
            arrival_s=arrival.arrival_s / scaling.speed,
            prompt_tokens=max(1, round(arrival.prompt_tokens * scaling.prompt)),
            output_tokens=max(1, round(arrival.output_tokens * scaling.output)),
            shared_block_tokens=arrival.shared_block_tokens * scaling.prompt,
        )
        for arrival in in_order[:: scaling.every]
    ]


def prompt_token_ids(arrival: Arrival, index: int) -> TokenIds:
    """int32 [prompt_tokens]: tokens that are equal where two prompts share a prefix, and nowhere else.

    Args:
        index: the request's number, for the content of a prompt that shares nothing.
    """
    if not arrival.hash_ids:
        return np.full(arrival.prompt_tokens, OUTPUT_TOKEN - 1 - index, np.int32)
    place = np.floor(np.arange(arrival.prompt_tokens) / arrival.shared_block_tokens).astype(np.intp)
    # Rounding of a scaled prompt can reach past the last id.
    return np.asarray(arrival.hash_ids, np.int32)[np.minimum(place, len(arrival.hash_ids) - 1)]


def blocks_of(num_tokens: int, block_size: int) -> int:
    """KV blocks for a number of tokens."""
    return math.ceil(num_tokens / block_size)

"""The shape of a load: how many requests, when, and how long. All of it is drawn from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

LOWEST_ID, HIGHEST_ID = 400, 4400
"""Token ids of prompts: ordinary tokens of every usual vocabulary, past the special tokens and single bytes that many
begin with."""

Arrivals = Literal["constant", "poisson"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Attributes:
    rate: requests a second; None: each client sends its next request after the last response.
    arrivals: times between requests at a rate: all equal, or exponential (a Poisson process).
    concurrency: maximum requests in flight.
    requests, seconds: the load ends at whichever comes first; None: no such end. One of them is set.
    prompt, output: lowest and highest number of tokens; lengths are uniform between them.
    shared: share of each prompt's tokens that all prompts have in common, from their first token on.
    seed: the same seed draws the same requests at the same times.
    """

    rate: float | None
    arrivals: Arrivals
    concurrency: int
    requests: int | None
    seconds: float | None
    prompt: tuple[int, int]
    output: tuple[int, int]
    shared: float
    seed: int


@dataclass(frozen=True, slots=True)
class Draw:
    """A request of the load.

    Attributes:
        due: time in seconds after the start of the load; 0 without a rate.
        prompt: token ids of the prompt.
        output: tokens to generate.
    """

    due: float
    prompt: list[int]
    output: int

    def body(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the body of a POST to /v1/completions that generates exactly `output` tokens."""
        return {
            **options,
            "prompt": self.prompt,
            "max_tokens": self.output,
            "min_tokens": self.output,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def draws(shape: Shape) -> Iterator[Draw]:
    """Yields the requests of a load in the order of their times; without `requests` and `seconds` they have no end."""
    times, contents = random.Random(f"{shape.seed} times"), random.Random(f"{shape.seed} contents")
    common = [contents.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(round(shape.prompt[1] * shape.shared))]
    due, number = 0.0, 0
    while shape.requests is None or number < shape.requests:
        if shape.rate is not None and number:
            due += times.expovariate(shape.rate) if shape.arrivals == "poisson" else 1 / shape.rate
        if shape.seconds is not None and due >= shape.seconds:
            return
        length = contents.randint(*shape.prompt)
        prompt = common[: round(length * shape.shared)]
        prompt += [contents.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(length - len(prompt))]
        yield Draw(due, prompt, contents.randint(*shape.output))
        number += 1

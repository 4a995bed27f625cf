"""The requests of nano-vllm's benchmark: lengths and token ids at random, the same in every run."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

TEMPERATURE = 0.6


@dataclass(frozen=True, slots=True)
class Workload:
    """`output_tokens`: of each request; end-of-sequence is ignored."""

    prompts: list[list[int]]
    output_tokens: list[int]

    @property
    def num_output_tokens(self) -> int:
        return sum(self.output_tokens)


def nano(num_requests: int = 256, least: int = 100, most: int = 1024, highest_token: int = 10000) -> Workload:
    """Prompts and outputs of `least` to `most` tokens, drawn in the order of nano-vllm's bench.py with seed 0."""
    rng = Random(0)
    prompts = [[rng.randint(0, highest_token) for _ in range(rng.randint(least, most))] for _ in range(num_requests)]
    return Workload(prompts, [rng.randint(least, most) for _ in range(num_requests)])

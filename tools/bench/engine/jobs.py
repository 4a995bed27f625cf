"""Jobs, the same for all engines. Standard library only, because every driver imports this module."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["generate", "decode"]

_FIRST_ORDINARY_TOKEN = 100
"""First token id of prompts: lower ones are special tokens."""


@dataclass(frozen=True, slots=True)
class Job:
    """A measurement.

    Attributes:
        kind: `generate`: all prompts at once, until the last output token. `decode`: that many steps in which every
            prompt is decoding, and nothing else.
        prompt_tokens: length of each prompt.
        output_tokens: output tokens of each prompt; for `decode`, the steps to time.
    """

    kind: Kind
    prompt_tokens: tuple[int, ...]
    output_tokens: int

    @property
    def num_output_tokens(self) -> int:
        """Output tokens of all prompts together."""
        return len(self.prompt_tokens) * self.output_tokens


def make_prompts(job: Job, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Random token ids, so that no two prompts share a prefix."""
    rng = random.Random(seed)
    return [[rng.randrange(_FIRST_ORDINARY_TOKEN, vocab_size) for _ in range(length)] for length in job.prompt_tokens]

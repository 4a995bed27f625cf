"""Jobs, the same for all engines. Standard library only, because every driver imports this module."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["generate", "decode"]

_FIRST_ORDINARY_TOKEN = 100
"""First token id of prompts: lower ones are special tokens."""

_VALUES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"type": "string", "maxLength": 20}, {"type": "integer", "minimum": 0, "maximum": 150}),
    ({"enum": ["low", "medium", "high"]}, {"type": "array", "items": {"type": "string"}, "maxItems": 3}),
    ({"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, {"type": "boolean"}),
    ({"type": "number"}, {"anyOf": [{"type": "null"}, {"type": "string", "format": "date"}]}),
)
SCHEMAS: tuple[dict[str, Any], ...] = tuple(
    {
        "type": "array",
        "minItems": 500,
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}, "first": first, "second": second},
            "required": ["name", "first", "second"],
            "additionalProperties": False,
        },
    }
    for first, second in _VALUES
)
"""No text of them ends within the output tokens of a job."""


@dataclass(frozen=True, slots=True)
class Job:
    """A measurement.

    Attributes:
        kind: `generate`: all prompts at once, until the last output token. `decode`: that many steps in which every
            prompt is decoding, and nothing else.
        prompt_tokens: length of each prompt.
        output_tokens: output tokens of each prompt; for `decode`, the steps to time.
        structured: each answer follows a schema of `SCHEMAS`, in turn.
    """

    kind: Kind
    prompt_tokens: tuple[int, ...]
    output_tokens: int
    structured: bool = False

    @property
    def num_output_tokens(self) -> int:
        """Output tokens of all prompts together."""
        return len(self.prompt_tokens) * self.output_tokens


def make_prompts(job: Job, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Random token ids, so that no two prompts share a prefix."""
    rng = random.Random(seed)
    return [[rng.randrange(_FIRST_ORDINARY_TOKEN, vocab_size) for _ in range(length)] for length in job.prompt_tokens]


def schemas_of(job: Job) -> list[dict[str, Any]]:
    """The schema of each answer; empty: they are free."""
    return [SCHEMAS[index % len(SCHEMAS)] for index in range(len(job.prompt_tokens))] if job.structured else []

"""Conversations of a Mooncake trace, scaled to a small machine: shorter prompts and outputs, a shorter time."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

TRACE = Path(__file__).parents[1] / "data" / "mooncake_conversation_sessions.jsonl"
BLOCK_TOKENS = 16
"""Tokens of the scaled prompt for each hash id, which stands for 512 tokens in the trace: 1 in 32."""
_TRACE_BLOCK_TOKENS = 512
_OUTPUT_SCALE = 32
_FIRST_TOKEN_ID = 1000
"""First token id that is used: lower ones may be special."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A request. Attributes: at_s: seconds after the load's begin."""

    at_s: float
    prompt: list[int]
    output_tokens: int


def turns(seconds: float, vocab_size: int) -> list[Turn]:
    """All requests of the trace, in `seconds`. Prompts that share hash ids in the trace share tokens."""
    rows = [json.loads(line) for line in TRACE.read_text().splitlines()]
    first, last = rows[0]["timestamp"], rows[-1]["timestamp"]
    blocks: dict[int, list[int]] = {}

    def block(hash_id: int) -> list[int]:
        if hash_id not in blocks:
            rng = random.Random(hash_id)
            blocks[hash_id] = [rng.randrange(_FIRST_TOKEN_ID, vocab_size) for _ in range(BLOCK_TOKENS)]
        return blocks[hash_id]

    def prompt(row: dict[str, list[int]], length: int) -> list[int]:
        return [token for each in row["hash_ids"] for token in block(each)][: max(1, length)]

    return [
        Turn(
            at_s=(row["timestamp"] - first) / max(1, last - first) * seconds,
            prompt=prompt(row, row["input_length"] * BLOCK_TOKENS // _TRACE_BLOCK_TOKENS),
            output_tokens=max(2, row["output_length"] // _OUTPUT_SCALE),
        )
        for row in rows
    ]

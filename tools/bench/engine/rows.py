"""The measurements, one for each row of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tools.bench.engine.jobs import SCHEMAS, Job

Counted: TypeAlias = Literal["output", "prompt"]

_DECODE_STEPS = {1: 96, 8: 64, 32: 48}
_DECODE_PROMPTS = (32, 64, 96, 128)


@dataclass(frozen=True, slots=True)
class Row:
    """A job whose tokens a second are compared.

    Attributes:
        name: for `--only`.
        counted: which tokens.
        num_runs: of each engine.
        peers: that are asked for it.
    """

    name: str
    title: str
    job: Job
    counted: Counted
    num_runs: int
    peers: tuple[str, ...]

    def tokens_per_second(self, seconds: float) -> float:
        tokens = sum(self.job.prompt_tokens) if self.counted == "prompt" else self.job.num_output_tokens
        return tokens / seconds


def _decode(batch: int, peers: tuple[str, ...]) -> Row:
    prompts = tuple(_DECODE_PROMPTS[index % len(_DECODE_PROMPTS)] for index in range(batch))
    job = Job("decode", prompts, _DECODE_STEPS[batch])
    return Row(f"decode-{batch}", f"decode at batch {batch}", job, "output", 5, peers)


STRUCTURED = "structured"
"""The job of `short`, of which each answer follows a schema."""

ROWS = (
    Row("short", "32 x (128 in, 64 out)", Job("generate", (128,) * 32, 64), "output", 3, ("vllm",)),
    Row(
        STRUCTURED, "32 x (128 in, 64 out), structured", Job("generate", (128,) * 32, 64, structured=True), "output", 3,
        ("vllm",),
    ),
    Row("long", "16 x (1024 in, 128 out)", Job("generate", (1024,) * 16, 128), "output", 2, ("vllm",)),
    _decode(1, ("vllm", "llama.cpp")),
    _decode(8, ("vllm",)),
    _decode(32, ("vllm",)),
    Row("prefill", "prefill of 1024", Job("generate", (1024,), 1), "prompt", 5, ("vllm", "llama.cpp")),
)  # fmt: skip
"""Tokens a second, with all cores."""

READY = "ready"
"""Seconds from starting a server until it takes requests."""
HTTP = "http"
"""The job of `short` over HTTP, and offline with as many engine threads: one."""
NAMES = (*(row.name for row in ROWS), READY, HTTP)

WARM_UPS = (
    Job("generate", (128, 96, 64), 4),
    Job("generate", (1024,), 2),
    Job("generate", (16,) * len(SCHEMAS), 2, structured=True),
)
"""Jobs that run before anything is timed."""

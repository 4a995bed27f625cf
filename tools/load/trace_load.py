"""Open-loop load: each request is sent at its time in the trace."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from inflight_kubectl.load.answers import Answer, AnswerError
from inflight_kubectl.load.client import Client

_READ_SECONDS = 300


class Job(NamedTuple):
    """`at`: seconds after the start of the load. `prompt_tokens`, `output_tokens`: exact lengths."""

    at: float
    prompt_tokens: int
    output_tokens: int

    def body(self, prompt: Sequence[int]) -> dict[str, Any]:
        """A streamed completion; the end-of-sequence token is ignored, so that the output has its length."""
        return {
            "prompt": prompt,
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


class Measured(NamedTuple):
    """An answered request as its client saw it; seconds after the start of the load."""

    job: Job
    first_token_at: float
    last_token_at: float

    @property
    def ttft(self) -> float:
        return self.first_token_at - self.job.at

    @property
    def tpot(self) -> float | None:
        """Mean seconds per token after the first; None for a single token."""
        if self.job.output_tokens < 2:
            return None
        return (self.last_token_at - self.first_token_at) / (self.job.output_tokens - 1)


async def run_load(url: str, jobs: Sequence[Job], *, vocab_size: int, seed: int = 0) -> list[Measured]:
    """Send all jobs at their times; returns what was measured, in the jobs' order.

    Prompts are random token ids, so that no two share a prefix.

    Raises:
        ExceptionGroup: of AnswerErrors: requests that were not answered whole, or with another number of tokens.
    """
    rng = random.Random(seed)
    prompts = [[rng.randrange(vocab_size) for _ in range(job.prompt_tokens)] for job in jobs]
    async with Client(url, read_seconds=_READ_SECONDS) as client:
        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            sent = [
                tasks.create_task(_send(client, job, prompt, started))
                for job, prompt in zip(jobs, prompts, strict=True)
            ]
    return [task.result() for task in sent]


async def _send(client: Client, job: Job, prompt: list[int], started: float) -> Measured:
    await asyncio.sleep(started + job.at - time.monotonic())
    answer = Answer(started)
    await client.ask(job.body(prompt), answer)
    if answer.completion_tokens != job.output_tokens:
        raise AnswerError(f"an answer has {answer.completion_tokens} tokens, not {job.output_tokens}")
    assert answer.first is not None, "a whole answer has a first token"
    assert answer.last is not None
    return Measured(job, answer.first - started, answer.last - started)

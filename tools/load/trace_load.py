"""Open-loop load: each request is sent at its time in the trace."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

import httpx

_CONNECT_SECONDS = 10
_READ_SECONDS = 300


class Job(NamedTuple):
    """`at`: seconds after the start of the load. `prompt_tokens`, `output_tokens`: exact lengths."""

    at: float
    prompt_tokens: int
    output_tokens: int


class Measured(NamedTuple):
    """One answered request as its client saw it; seconds after the start of the load."""

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

    Prompts are random token ids, so that no two share a prefix; the end-of-sequence token is ignored, so that each
    output has its length.

    Raises:
        RuntimeError: a request was not answered whole.
    """
    rng = random.Random(seed)
    prompts = [[rng.randrange(vocab_size) for _ in range(job.prompt_tokens)] for job in jobs]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    timeout = httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=timeout) as client:
        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            sent = [
                tasks.create_task(_send(client, job, prompt, started))
                for job, prompt in zip(jobs, prompts, strict=True)
            ]
    return [task.result() for task in sent]


async def _send(client: httpx.AsyncClient, job: Job, prompt: list[int], started: float) -> Measured:
    body = {"prompt": prompt, "max_tokens": job.output_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    await asyncio.sleep(started + job.at - time.monotonic())
    first = last = None
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            raise RuntimeError(f"HTTP {response.status_code}: {(await response.aread()).decode()}")
        done = False
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                done = line == "data: [DONE]"
                if not done:
                    last = time.monotonic() - started
                    first = last if first is None else first
    if not done or first is None or last is None:
        raise RuntimeError("a stream ended before its end")
    return Measured(job, first, last)

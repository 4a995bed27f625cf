"""Open-loop load from a repeated slice of a trace.

A slice is as long as the windows that goodput is measured over, so that every window has the same requests, whatever
moment it begins at. Engine and client share the machine, so the client reads no more of an answer than its chunks.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from inflight_simulator.arrivals import Scaling, scaled
from inflight_simulator.trace_files import read_arrivals
from tools.load.trace_load import Job

TRACE = Path(__file__).resolve().parents[1] / "data" / "azure_conv_first_10min.csv"
VOCAB_SIZE = 49152
_END = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class Shape:
    """Factors of the trace's prompt and output lengths, and the first of its requests that is taken."""

    name: str
    prompt: float
    output: float
    first: int = 0


@dataclass(frozen=True, slots=True)
class Slice:
    """Requests of `seconds`, by time."""

    jobs: tuple[Job, ...]
    seconds: float

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.jobs) / self.seconds

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Of prompts and outputs."""
        number = len(self.jobs)
        return sum(job.prompt_tokens for job in self.jobs) / number, sum(
            job.output_tokens for job in self.jobs
        ) / number

    def repeated(self, start: float, end: float) -> Iterator[Job]:
        """Jobs of slice after slice whose times are in [start, end); the first slice begins at 0."""
        turn = int(start // self.seconds)
        while turn * self.seconds < end:
            for job in self.jobs:
                at = turn * self.seconds + job.at
                if start <= at < end:
                    yield job._replace(at=at)
            turn += 1


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request, as its client saw it.

    Attributes:
        at: when it was due, seconds.
        ttft: seconds from then to the first token; None: refused, or not there when the client gave up.
        tpot: mean seconds per token after the first; None without a second one.
        whole: whether the last token came.
    """

    at: float
    ttft: float | None
    tpot: float | None
    whole: bool


def trace_slice(shape: Shape, requests: int, seconds: float, most_tokens: int) -> Slice:
    """So many requests of the trace in a row, their times stretched to fill `seconds`.

    Args:
        most_tokens: longest prompt.
    """
    arrivals = scaled(read_arrivals(TRACE), Scaling(None, 1, shape.prompt, shape.output))
    chosen = arrivals[shape.first : shape.first + requests + 1]
    began = chosen[0].arrival_s
    factor = seconds / (chosen[-1].arrival_s - began)
    return Slice(
        tuple(
            Job((one.arrival_s - began) * factor, min(one.prompt_tokens, most_tokens), one.output_tokens)
            for one in chosen[:-1]
        ),
        seconds,
    )


class Client:
    """Sends requests to one engine. Prompts are random token ids, new ones for each request: none shares a prefix."""

    def __init__(self, http: aiohttp.ClientSession, url: str, seed: int) -> None:
        self._http = http
        self._url = f"{url}/v1/completions"
        self._rng = random.Random(seed)

    async def send(self, jobs: Sequence[Job], began: float, patience: float) -> list[Answer]:
        """All jobs at their times, and `patience` seconds more for the last ones; what is not there then is given up.

        Args:
            began: second 0 of the jobs on the steady clock.

        Raises:
            RuntimeError: the engine cannot be reached.
        """
        tasks: list[asyncio.Task[Answer]] = []
        for job in jobs:
            await asyncio.sleep(began + job.at - time.monotonic())
            tasks.append(asyncio.create_task(self._one(job, began)))
        pending = (await asyncio.wait(tasks, timeout=patience))[1] if tasks else ()
        for task in pending:
            task.cancel()
        return list(await asyncio.gather(*tasks))

    async def _one(self, job: Job, began: float) -> Answer:
        first = last = None
        whole = False
        body = {
            "prompt": self._rng.choices(range(VOCAB_SIZE), k=job.prompt_tokens),
            "max_tokens": job.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {"Content-Type": "application/json"}
        try:
            async with self._http.post(self._url, data=json.dumps(body), headers=headers) as response:
                if response.status == 200:
                    async for chunk in response.content.iter_any():
                        last = time.monotonic() - began
                        first = last if first is None else first
                        whole = whole or _END in chunk
        except asyncio.CancelledError:
            pass  # given up: what came so far is the answer
        except aiohttp.ClientError as error:
            raise RuntimeError(f"the engine does not answer: {error}") from error
        if first is None or last is None:
            return Answer(job.at, None, None, whole=False)
        tpot = (last - first) / (job.output_tokens - 1) if whole and job.output_tokens > 1 else None
        return Answer(job.at, first - job.at, tpot, whole)

"""Open-loop load from a repeated slice of a trace.

A slice is as long as the windows that goodput is measured over, so that every window has the same requests, whatever
moment it begins at.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from inflight_kubectl.load import answers
from inflight_kubectl.load.client import Client, DisconnectedError
from inflight_simulator.arrivals import Scaling, scaled
from inflight_simulator.trace_files import read_arrivals
from tools.load.trace_load import Job

TRACE = Path(__file__).resolve().parents[1] / "data" / "azure_conv_first_10min.csv"
VOCAB_SIZE = 49152


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
        """Mean tokens of prompts and of outputs."""
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
    """Outcome of a request, as its client saw it.

    Attributes:
        at: when it was due, in seconds.
        ttft: seconds from then to the first token; None: refused, or too late for the client.
        tpot: mean seconds per token after the first; None without a second one.
        whole: the last token came.
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


class Sender:
    """Sends requests to one engine. Prompts are random token ids, new ones for each request: none shares a prefix.

    Args:
        headers: of each request.
    """

    def __init__(self, client: Client, seed: int, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self._client = client
        self._headers = headers
        self._rng = random.Random(seed)

    async def send(self, jobs: Sequence[Job], began: float, patience: float) -> list[Answer]:
        """Sends all jobs at their times, and `patience` seconds more for the last ones; what is not there then is given
        up.

        Args:
            began: second 0 of the jobs on the steady clock.

        Raises:
            RuntimeError: the engine cannot be reached.
        """
        tasks: list[asyncio.Task[Answer]] = []
        for job in jobs:
            await asyncio.sleep(began + job.at - time.monotonic())
            tasks.append(asyncio.create_task(self._one(job, began + job.at)))
        pending = (await asyncio.wait(tasks, timeout=patience))[1] if tasks else ()
        for task in pending:
            task.cancel()
        return list(await asyncio.gather(*tasks))

    async def _one(self, job: Job, due: float) -> Answer:
        seen = answers.Answer(due)
        try:
            await self._client.ask(
                job.body(self._rng.choices(range(VOCAB_SIZE), k=job.prompt_tokens)), seen, headers=self._headers
            )
        except DisconnectedError as error:
            raise RuntimeError(f"the engine does not answer: {error.what}") from error
        except (answers.AnswerError, asyncio.CancelledError):
            pass  # refused, cut or given up: what came so far is the answer
        return Answer(job.at, seen.ttft, seen.tpot if seen.done else None, seen.done)

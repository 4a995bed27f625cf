"""The conversation between the benchmark and one engine's program: JSON lines over standard input and output.

First line in: settings. First line out: `{"engine": ..., "vocab_size": ...}` when the engine can take work, or
`{"error": ...}`. Then each line in is a job, each line out `{"seconds": ...}` or `{"error": ...}`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from tools.bench.engine.jobs import Job, make_prompts, schemas_of

DECODE_WARM_UP_STEPS = 3
"""Steps in which all prompts decode, before those that are timed."""


class Driver(Protocol):
    """A loaded engine.

    Attributes:
        engine: its name and version, and its kernels.
        vocab_size: number of token ids, from 0.
    """

    engine: str
    vocab_size: int

    def generate(self, prompts: list[list[int]], output_tokens: int, schemas: list[dict[str, Any]]) -> int:
        """Generates greedily from all prompts at once, past end-of-sequence. Returns the number of output tokens.

        Args:
            schemas: of the answers, as many as prompts; empty: they are free.
        """

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        """Seconds of `steps` steps in which every prompt gets a token, after `DECODE_WARM_UP_STEPS` such steps."""


def run(make: Callable[[dict[str, Any]], Driver]) -> None:
    """Serve jobs until standard input ends. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        driver = make(json.loads(sys.stdin.readline()))
    except Exception as error:  # sent to the benchmark, which reports it in its table
        traceback.print_exc()
        _answer(answers, {"error": _reason(error)})
        return
    _answer(answers, {"engine": driver.engine, "vocab_size": driver.vocab_size})
    for line in sys.stdin:
        fields = json.loads(line)
        job = Job(**{**fields, "prompt_tokens": tuple(fields["prompt_tokens"])})
        try:
            _answer(answers, {"seconds": measure(driver, job)})
        except Exception as error:  # as above
            traceback.print_exc()
            _answer(answers, {"error": _reason(error)})


def measure(driver: Driver, job: Job) -> float:
    """Seconds that a job takes.

    Raises:
        RuntimeError: not all tokens came.
    """
    prompts = make_prompts(job, driver.vocab_size)
    if job.kind == "decode":
        return driver.decode(prompts, job.output_tokens)
    started = time.perf_counter()
    num_tokens = driver.generate(prompts, job.output_tokens, schemas_of(job))
    seconds = time.perf_counter() - started
    if num_tokens != job.num_output_tokens:
        raise RuntimeError(f"{num_tokens} output tokens came, not {job.num_output_tokens}")
    return seconds


def _answer(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _reason(error: Exception) -> str:
    """Returns the error as a line of at most 200 characters."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:200]

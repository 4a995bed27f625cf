"""A job as streamed completions over HTTP: `python -m tools.bench.engine.http_client PORT JOB` prints its seconds.

A process of its own on one CPU, so that what is measured is the server. JOB is JSON as `jobs.Job` has it; the requests
are sent at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from inflight_kubectl.answers import Answer
from inflight_kubectl.load.client import Client
from tools.bench.engine.jobs import Job, make_prompts
from tools.load import trace_load


async def send(client: Client, prompt: list[int], output_tokens: int) -> None:
    """Sends a request and reads its answer to the end.

    Raises:
        AnswerError: the answer was not whole.
        RuntimeError: the answer has other than `output_tokens` tokens.
    """
    answer = Answer(time.monotonic())
    await client.ask(trace_load.Job(0.0, len(prompt), output_tokens).body(prompt), answer)
    if answer.completion_tokens != output_tokens:
        raise RuntimeError(f"an answer has not {output_tokens} tokens")


async def run(port: int, job: Job, vocab_size: int) -> float:
    """Seconds until all requests of a job are answered."""
    prompts = make_prompts(job, vocab_size)
    started = time.perf_counter()
    async with Client(f"http://127.0.0.1:{port}") as client, asyncio.TaskGroup() as tasks:
        for prompt in prompts:
            tasks.create_task(send(client, prompt, job.output_tokens))
    return time.perf_counter() - started


def main() -> None:
    port, fields = int(sys.argv[1]), json.loads(sys.argv[2])
    job = Job(fields["kind"], tuple(fields["prompt_tokens"]), fields["output_tokens"])
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(asyncio.run(run(port, job, fields["vocab_size"])))


if __name__ == "__main__":
    main()

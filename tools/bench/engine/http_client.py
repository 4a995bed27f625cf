"""A job as streamed completions over HTTP: `python -m tools.bench.engine.http_client PORT JOB` prints its seconds.

A process of its own on one CPU, with as little work for each chunk as reading it takes, so that what is measured is the
server. JOB is JSON as `jobs.Job` has it; the requests are sent at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from tools.bench.engine.jobs import Job, make_prompts

_READ_BYTES = 1 << 16


async def send(port: int, prompt: list[int], output_tokens: int) -> None:
    """One request, to the end of its answer.

    Raises:
        RuntimeError: the answer was not whole.
    """
    body = json.dumps(
        {
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    received = bytearray()
    while chunk := await reader.read(_READ_BYTES):
        received += chunk
    writer.close()
    if not received.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in received:
        raise RuntimeError(f"an answer was not whole: {received[:200].decode(errors='replace')}")
    if f'"completion_tokens":{output_tokens}'.encode() not in received.replace(b" ", b""):
        raise RuntimeError(f"an answer has not {output_tokens} tokens")


async def run(port: int, job: Job, vocab_size: int) -> float:
    """Seconds until all requests of a job are answered."""
    prompts = make_prompts(job, vocab_size)
    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for prompt in prompts:
            tasks.create_task(send(port, prompt, job.output_tokens))
    return time.perf_counter() - started


def main() -> None:
    port, fields = int(sys.argv[1]), json.loads(sys.argv[2])
    job = Job(fields["kind"], tuple(fields["prompt_tokens"]), fields["output_tokens"])
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(asyncio.run(run(port, job, fields["vocab_size"])))


if __name__ == "__main__":
    main()

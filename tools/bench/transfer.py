"""Keys and values from another engine: a prompt that one engine computes and another one reads, over this machine's
loopback interface, beside a copy in memory and a plain connection of as many bytes."""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inflight_settings.flag_types import number
from tools.measure.processes import touch_memory
from tools.measure.report import cpu_model, say, table
from tools.measure.served import served_engine

BLOCK = 16
BLOCK_BYTES = BLOCK * 30 * 2 * 3 * 64 * 4
"""Bytes of a block of SmolLM2 135M in float32: 30 layers, keys and values, 3 heads of 64."""
_VOCABULARY = (100, 40_000)
_FLAGS = (
    f"--dtype float32 --swap-space 1Gi --preemption swap --max-num-seqs 4 --max-model-len 4096 --block-size {BLOCK}"
)
_SEND_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Round:
    """Times of a prompt. Seconds until its first token: `computed` by the first engine, `read` from it by the second
    one, and `cached`, by the second one again. Seconds for as many bytes: `connection`, `copy`."""

    num_bytes: int
    computed: float
    read: float
    cached: float
    connection: float
    copy: float


def ask(url: str, prompt: list[int], params: dict[str, Any] | None) -> tuple[float, dict[str, Any]]:
    """Returns the seconds that one token of a prompt takes, and the answer."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "kv_transfer_params": params}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=300) as answer:
        return time.perf_counter() - started, json.load(answer)


def connection_seconds(data: memoryview) -> float:
    """Returns the seconds that bytes take through a TCP connection of the loopback interface, between two threads."""
    received = memoryview(bytearray(len(data)))
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=[server, data])
        sender.start()
        started, done = time.perf_counter(), 0
        with socket.create_connection(server.getsockname()) as connection:
            while done < len(data):
                done += connection.recv_into(received[done:])
        sender.join()
        return time.perf_counter() - started


def _send(server: socket.socket, data: memoryview) -> None:
    connection, _ = server.accept()
    with connection:
        for begin in range(0, len(data), _SEND_BYTES):
            connection.sendall(data[begin : begin + _SEND_BYTES])


def copy_seconds(data: memoryview) -> float:
    """Returns the seconds that a copy in memory takes, which was written to before."""
    source, copied = np.frombuffer(data, np.uint8), np.ones(len(data), np.uint8)
    started = time.perf_counter()
    np.copyto(copied, source)
    return time.perf_counter() - started


def measure(first: str, second: str, num_tokens: int, seed: int) -> Round:
    """Returns a round with a prompt that neither engine has seen.

    Raises:
        ValueError: not all of its blocks were read.
    """
    draws = random.Random(seed)
    prompt = [draws.randrange(*_VOCABULARY) for _ in range(num_tokens)]
    computed, answer = ask(first, prompt, {"do_remote_decode": True})
    read, found = ask(second, prompt, answer["kv_transfer_params"])
    num_blocks = (num_tokens - 1) // BLOCK
    if (num_cached := found["usage"]["prompt_tokens_details"]["cached_tokens"]) != num_blocks * BLOCK:
        raise ValueError(f"{num_cached} of {num_blocks * BLOCK} tokens came from the first engine")
    cached, _ = ask(second, prompt, None)
    data = memoryview(bytearray(draws.randbytes(BLOCK_BYTES) * num_blocks))
    return Round(len(data), computed, read, cached, connection_seconds(data), copy_seconds(data))


def lines(rounds: Sequence[Round]) -> Iterator[str]:
    """The report: medians, with minimum and maximum."""
    yield f"{len(rounds)} prompts, {rounds[0].num_bytes / 1e6:.0f} MB of keys and values each"
    yield ""
    seconds = [
        ("computed", [each.computed for each in rounds]),
        ("read from the other engine", [each.read for each in rounds]),
        ("in the cache", [each.cached for each in rounds]),
    ]
    rows = [["first token", "s"], *([name, _spread(values, 3)] for name, values in seconds)]
    yield from table(rows)
    yield ""
    rates = [
        ("blocks, between two engines", [each.num_bytes / (each.read - each.cached) / 1e6 for each in rounds]),
        ("a TCP connection", [each.num_bytes / each.connection / 1e6 for each in rounds]),
        ("a copy in memory", [each.num_bytes / each.copy / 1e6 for each in rounds]),
    ]
    ours = statistics.median(rates[0][1])
    yield from table(
        [
            ["", "MB/s", "by blocks"],
            *([name, _spread(values, 0), f"{statistics.median(values) / ours:.1f}x"] for name, values in rates),
        ]
    )


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.transfer",
        description=" ".join(str(__doc__).split()),
        epilog="example: python -m tools.bench.transfer --tokens 500 --rounds 3",
    )
    parser.add_argument(
        "--tokens", type=number(int, BLOCK + 1, 4000), default=1500, metavar="N", help="of a prompt (default: 1500)"
    )
    parser.add_argument("--rounds", type=number(int, 1), default=5, metavar="N", help="prompts (default: %(default)s)")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="transfer-") as folder, ExitStack() as running:
        urls = []
        for name in ("first", "second"):
            say(f"starting the {name} engine")
            log, environment = Path(folder) / f"{name}.log", {"INFLIGHT_ADMIN_TOKEN": "bench", "INFLIGHT_POD_UID": name}
            engine = served_engine(log, *_FLAGS.split(), "--admin-port", "0", environment=environment)
            urls.append(running.enter_context(engine))
        touch_memory(os.getpid())
        measure(urls[0], urls[1], flags.tokens, seed=0)  # connections and threads begin
        rounds = []
        for seed in range(1, flags.rounds + 1):
            found = measure(urls[0], urls[1], flags.tokens, seed)
            say(f"round {seed} of {flags.rounds}: read in {found.read:.2f} s, computed in {found.computed:.2f}")
            rounds.append(found)
    print(cpu_model())
    print("\n".join(lines(rounds)))


if __name__ == "__main__":
    main()

"""A model of 2 GB of random weights, from a server on this machine to the first token: seconds, rate, memory, disk.

    python -m tools.bench.delivery [--rate GBITS ...]

weights: seconds in which they were read, as the engine says. share: of the link, in that time. above: the most memory
that the engine process had, without the weights and without what one with a model of 13 MB has. disk: bytes that the
server's processes wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.bench.delivery.checkpoint import LARGE, TINY, write_checkpoint
from tools.measure.processes import family, memory
from tools.measure.report import cpu_model, say, table
from tools.measure.served import ENGINE, free_port, process, wait_ready

GOAL_SHARE = 0.9
"""Share of a link of 1 Gb/s."""

READY_SECONDS = 600.0
_GIGABIT = 125e6
_READ = re.compile(r"of weights read in (\S+) s")


@dataclass(frozen=True, slots=True)
class Start:
    """A start from a store.

    Attributes:
        ready, answered: seconds from the start of the process until ready, and until the first token.
        reading: seconds in which the weights were read.
        peak: most bytes of memory of the engine process.
        written: bytes that the processes wrote to disks.
    """

    ready: float
    answered: float
    reading: float
    peak: int
    written: int


def measure(source: str, log: Path) -> Start:
    """Starts an engine and asks it for one token.

    Raises:
        RuntimeError: it did not become ready; the message has the end of its log.
    """
    port = free_port()
    small = "--dtype bfloat16 --max-num-seqs 2 --max-num-batched-tokens 64 --max-model-len 128 --num-kv-blocks 32"
    command = [str(ENGINE), "serve", source, "--host", "127.0.0.1", "--port", str(port), *small.split()]
    url, begin = f"http://127.0.0.1:{port}", time.perf_counter()
    with process(log, command, {"no_proxy": "127.0.0.1"}) as engine:
        wait_ready(f"{url}/ready", {"the engine": (engine, log)}, READY_SECONDS)
        ready = time.perf_counter()
        body = json.dumps({"prompt": "The capital of France is", "max_tokens": 1}).encode()
        asked = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked) as answer:
            answer.read()
        answered = time.perf_counter()
        of_server = [Path(f"/proc/{pid}") for pid in family(engine.pid)]
        peak = max(memory((each / "status").read_text()).peak for each in of_server)
        written = sum(int(re.findall(r"^write_bytes: (\d+)", (each / "io").read_text(), re.M)[0]) for each in of_server)
    found = _READ.search(log.read_text())
    if found is None:
        raise RuntimeError(f"the engine did not say how long it read: {log}")
    return Start(ready - begin, answered - begin, float(found[1]), peak, written)


@contextmanager
def store(folder: Path, rate: float, log: Path) -> Iterator[str]:
    """The URL of a server with the files of a folder. `rate`: bytes a second, 0 for no limit."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "tools.bench.delivery.store",
        str(folder),
        "--port",
        str(port),
        "--rate",
        str(rate),
    ]
    with process(log, command) as running:
        wait_ready(f"{url}/config.json", {"the store": (running, log)})
        yield f"{url}/model"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A model of 2 GB from a store to the first token.")
    parser.add_argument(
        "--rate", type=float, action="append", help="gigabits a second, several times; 0: no limit. Default 1 and 0"
    )
    arguments = parser.parse_args(argv)
    rows: list[tuple[str, ...]] = [("link", "ready", "first token", "weights", "rate", "share", "above", "disk")]
    with tempfile.TemporaryDirectory() as top:
        base, large = Path(top) / "tiny", Path(top) / "large"
        base.mkdir()
        large.mkdir()
        say("writing the checkpoints")
        small, size = write_checkpoint(base, TINY), write_checkpoint(large, LARGE)
        with store(base, 0.0, Path(top) / "store.log") as source:
            alone = measure(source, Path(top) / "engine.log").peak - small
        for gigabits in arguments.rate or [1.0, 0.0]:
            say(f"{gigabits:g} Gb/s")
            with store(large, gigabits * _GIGABIT, Path(top) / "store.log") as source:
                start = measure(source, Path(top) / "engine.log")
            rows.append(_row(gigabits, start, size, alone))
    print(
        f"{cpu_model()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; {size / 1e9:.2f} GB of weights;", end=" "
    )
    print(f"goal {GOAL_SHARE:.0%} of 1 Gb/s")
    print("\n".join(table(rows, "<>")))
    return 0


def _row(gigabits: float, start: Start, size: int, alone: int) -> tuple[str, ...]:
    rate = size / start.reading
    return (
        f"{gigabits:g} Gb/s" if gigabits else "no limit",
        f"{start.ready:.1f} s",
        f"{start.answered:.1f} s",
        f"{start.reading:.1f} s",
        f"{rate / 1e6:.0f} MB/s",
        f"{rate / gigabits / _GIGABIT:.0%}" if gigabits else "",
        f"{(start.peak - size - alone) / 2**20:.0f} MiB",
        f"{start.written / 1e6:.1f} MB",
    )


if __name__ == "__main__":
    sys.exit(main())

"""A model of 2 GB of random weights, from a server on this machine to the first token: seconds, rate, memory, disk.

    python -m tools.bench.delivery [--rate GBITS ...] [--replicas N]

weights: seconds in which they were read, as the engine says. share: of the link, in that time. above: the most memory
that the engine process had, without the weights and without what one with a model of 13 MB has. disk: bytes that the
server's processes wrote.

The row `a folder` is an engine that reads a folder of this machine, which an image or a claim is in a pod. `the cache`
is the second engine of a node with a model cache. `a peer` is an engine that reads from another one, whose store gives
no more. The last lines are engines with a model of 0.5 GB that start at once, each with a model cache of its own, and
the source at 1 Gb/s: seconds to the first ready one and to the last, and bytes of the source.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tools.bench.delivery.checkpoint import LARGE, MIDDLE, TINY, write_checkpoint
from tools.bench.delivery.store import SENT_PATH
from tools.measure.processes import family, memory
from tools.measure.report import cpu_model, say, table
from tools.measure.served import ENGINE, free_port, process, wait_ready

GOAL_SHARE = 0.9
"""Share of a link of 1 Gb/s."""

GOAL_SENT = 2.0
"""Most bytes that the source sends to ten replicas that start at once, in bytes of the model."""

READY_SECONDS = 600.0
_GIGABIT = 125e6
_READ = re.compile(r"of weights read in (\S+) s")


@dataclass(frozen=True, slots=True)
class Start:
    """A start from a store.

    Attributes:
        ready, answered: seconds from the start of the process until ready, and until the first token.
        reading: seconds in which the weights were read; None: from a folder, as they are used.
        peak: most bytes of memory of the engine process.
        written: bytes that the processes wrote to disks.
    """

    ready: float
    answered: float
    reading: float | None
    peak: int
    written: int


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where an engine runs. Attributes: more: further arguments. environment: further variables."""

    port: int
    log: Path
    more: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def places(folder: Path, count: int) -> list[Place]:
    """Returns places of engines that read from each other, with their folders in a folder."""
    ports = [(free_port(), free_port()) for _ in range(count)]
    peers = folder / "peers.json"
    peers.write_text(json.dumps({f"engine-{admin}": f"127.0.0.1:{admin}" for _, admin in ports}))
    found = []
    for port, admin in ports:
        cache = folder / f"cache-{admin}"
        cache.mkdir()
        own = f"--admin-port {admin} --model-cache {cache} --model-cache-size 8Gi --peers-file {peers}"
        environment = {"INFLIGHT_ADMIN_TOKEN": "of the benchmark", "INFLIGHT_POD_UID": f"engine-{admin}"}
        found.append(Place(port, folder / f"engine-{admin}.log", tuple(own.split()), environment))
    return found


@contextmanager
def started(source: str, place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """An engine that starts."""
    small = "--dtype bfloat16 --max-num-seqs 2 --max-num-batched-tokens 64 --max-model-len 128 --num-kv-blocks 32"
    command = [str(ENGINE), "serve", source, "--host", "127.0.0.1", "--port", str(place.port), *small.split()]
    with process(place.log, [*command, *place.more], {"no_proxy": "127.0.0.1", **place.environment}) as engine:
        yield engine


def measure(source: str, place: Place) -> Start:
    """Starts an engine and asks it for one token.

    Raises:
        RuntimeError: it did not become ready; the message has the end of its log.
    """
    begin = time.perf_counter()
    with started(source, place) as engine:
        wait_ready(f"{place.url}/ready", {"the engine": (engine, place.log)}, READY_SECONDS)
        ready = time.perf_counter()
        body = json.dumps({"prompt": "The capital of France is", "max_tokens": 1}).encode()
        asked = urllib.request.Request(f"{place.url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked) as answer:
            answer.read()
        answered = time.perf_counter()
        of_server = [Path(f"/proc/{pid}") for pid in family(engine.pid)]
        peak = max(memory((each / "status").read_text()).peak for each in of_server)
        written = sum(int(re.findall(r"^write_bytes: (\d+)", (each / "io").read_text(), re.M)[0]) for each in of_server)
    found = _READ.search(place.log.read_text())
    if found is None and source.startswith("http"):
        raise RuntimeError(f"the engine did not say how long it read: {place.log}")
    return Start(ready - begin, answered - begin, float(found[1]) if found else None, peak, written)


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


def sent(source: str) -> int:
    """Returns the bytes of weights that a store has sent."""
    with urllib.request.urlopen(source.removesuffix("/model") + SENT_PATH) as answer:
        return int(answer.read())


def from_peer(source: str, folder: Path) -> Start:
    """Starts an engine, and another one that reads from it."""
    first, second = places(folder, 2)
    with started(source, first) as engine:
        wait_ready(f"{first.url}/ready", {"the engine": (engine, first.log)}, READY_SECONDS)
        return measure(source, second)


def at_once(source: str, folder: Path, count: int) -> tuple[float, float]:
    """Starts engines at once. Returns the seconds to the first ready one, and to the last."""
    begin, found = time.perf_counter(), places(folder, count)
    waiting = {}
    with ExitStack() as stack:
        for place in found:
            waiting[place] = stack.enter_context(started(source, place))
        ready = []
        with ThreadPoolExecutor(count) as threads:

            def wait(place: Place) -> None:
                wait_ready(f"{place.url}/ready", {"an engine": (waiting[place], place.log)}, READY_SECONDS)
                ready.append(time.perf_counter() - begin)

            list(threads.map(wait, found))
    return min(ready), max(ready)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A model of 2 GB from a store to the first token.")
    parser.add_argument(
        "--rate", type=float, action="append", help="gigabits a second, several times; 0: no limit. Default 1 and 0"
    )
    parser.add_argument("--replicas", type=int, default=10, help="engines that start at once, 0: none. Default 10")
    arguments = parser.parse_args(argv)
    rows: list[tuple[str, ...]] = [("link", "ready", "first token", "weights", "rate", "share", "above", "disk")]
    with tempfile.TemporaryDirectory() as top:
        names = ("tiny", "large", "middle", "cache", "peers", "many")
        base, large, middle, cache, peers, many = (Path(top) / name for name in names)
        for folder in (base, large, middle, cache, peers, many):
            folder.mkdir()
        say("writing the checkpoints")
        small, size, less = (write_checkpoint(*each) for each in ((base, TINY), (large, LARGE), (middle, MIDDLE)))
        with store(base, 0.0, Path(top) / "store.log") as source:
            alone = measure(source, Place(free_port(), Path(top) / "engine.log")).peak - small
        for gigabits in arguments.rate or [1.0, 0.0]:
            say(f"{gigabits:g} Gb/s")
            with store(large, gigabits * _GIGABIT, Path(top) / "store.log") as source:
                start = measure(source, Place(free_port(), Path(top) / "engine.log"))
            rows.append(_row(f"{gigabits:g} Gb/s" if gigabits else "no limit", gigabits, start, size, alone))
        say("a folder, the cache")
        start = measure(str(large), Place(free_port(), Path(top) / "engine.log"))
        rows.append(_row("a folder", 0.0, start, size, alone))
        with store(large, _GIGABIT, Path(top) / "store.log") as source:
            cached = ("--model-cache", str(cache), "--model-cache-size", "8Gi")
            measure(source, Place(free_port(), Path(top) / "engine.log", cached))
            start = measure(source, Place(free_port(), Path(top) / "engine.log", cached))
            rows.append(_row("the cache", 0.0, start, size, alone))
            lines = [f"the source sent {sent(source) / size:.2f} times the model to two engines with one cache"]
        shutil.rmtree(cache)
        say("a peer")
        with store(large, _GIGABIT, Path(top) / "store.log") as source:
            start = from_peer(source, peers)
            rows.append(_row("a peer", 1.0, start, size, alone))
            lines += [f"the source sent {sent(source) / size:.2f} times the model to the engine and its peer"]
        shutil.rmtree(peers)
        if arguments.replicas:
            say(f"{arguments.replicas} replicas")
            with store(middle, _GIGABIT, Path(top) / "store.log") as source:
                first, last = at_once(source, many, arguments.replicas)
                lines.append(
                    f"{arguments.replicas} replicas at once, {less / 1e9:.2f} GB each: ready after {first:.1f} to"
                    f" {last:.1f} s, the source sent {sent(source) / less:.2f} times the model (goal {GOAL_SENT:g})"
                )
    print(
        f"{cpu_model()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; {size / 1e9:.2f} GB of weights;", end=" "
    )
    print(f"goal {GOAL_SHARE:.0%} of 1 Gb/s")
    print("\n".join([*table(rows, "<>"), *lines]))
    return 0


def _row(name: str, gigabits: float, start: Start, size: int, alone: int) -> tuple[str, ...]:
    rate = size / start.reading if start.reading else 0.0
    return (
        name,
        f"{start.ready:.1f} s",
        f"{start.answered:.1f} s",
        f"{start.reading:.1f} s" if start.reading else "",
        f"{rate / 1e6:.0f} MB/s" if rate else "",
        f"{rate / gigabits / _GIGABIT:.0%}" if gigabits else "",
        f"{(start.peak - size - alone) / 2**20:.0f} MiB",
        f"{start.written / 1e6:.1f} MB",
    )


if __name__ == "__main__":
    sys.exit(main())

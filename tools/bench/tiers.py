"""Conversations whose prefixes are several times the device's KV cache: with the device alone, with host memory for a
part and for all of them behind it, and with a disk behind host memory for a part, in turns in one run; and the bytes/s
of each path."""

from __future__ import annotations

import argparse
import fcntl
import json
import mmap
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from inflight_engine.disk.store import DiskStore
from inflight_engine.engine_process import load
from inflight_engine.execution.host_cache import HostCache
from inflight_engine.execution.runner import Runner
from inflight_engine.messages import AddRequest, StepReport
from inflight_engine.request import SamplingParams
from inflight_settings.engine import EngineConfig
from inflight_settings.flag_types import number
from tools.measure.processes import touch_memory
from tools.measure.report import cpu_model

BLOCK = 16
VOCABULARY = 40_000
OUTPUT_TOKENS = 16
NEW_TOKENS = 64
"""Tokens of a user, in each turn."""
_COPIES = 3
"""The fastest of so many counts, as the first touches memory that nobody used before."""


@dataclass(frozen=True)
class Traffic:
    """Conversations that go on in turns, so many of them at once.

    Attributes:
        first: tokens of the first prompt of each.
    """

    conversations: int
    turns: int
    first: int
    at_once: int

    @property
    def longest(self) -> int:
        """Tokens of a conversation at its end."""
        return self.first + OUTPUT_TOKENS + (self.turns - 1) * (NEW_TOKENS + OUTPUT_TOKENS)

    def cache_blocks(self, times: float) -> int:
        """Return the blocks of a cache that all conversations at their ends exceed so many times."""
        return max(self.at_once * -(-self.longest // BLOCK), int(self.conversations * self.longest / times / BLOCK))


@dataclass
class Measured:
    """Sums over the rounds of one engine. `hits`, `queries`: prompt tokens."""

    first_ttft: list[float] = field(default_factory=list)
    """Seconds to the first token in the first turns, whose prompts no tier can hold."""
    later_ttft: list[float] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0
    hits: int = 0
    queries: int = 0
    loaded: int = 0
    stored: int = 0
    from_disk: int = 0
    to_disk: int = 0

    def row(self, name: str) -> dict[str, Any]:
        ttft = {"all": self.first_ttft + self.later_ttft, "later_turns": self.later_ttft}
        return {
            "engine": name,
            "ttft_ms": {
                turns: {f"p{at}": round(float(np.percentile(seconds, at)) * 1e3, 1) for at in (50, 95)}
                for turns, seconds in ttft.items()
            },
            "output_tokens_per_s": round(self.tokens / self.seconds, 1),
            "hit_rate": round(self.hits / self.queries, 3),
            "blocks_loaded": self.loaded,
            "blocks_stored": self.stored,
            "blocks_from_disk": self.from_disk,
            "blocks_to_disk": self.to_disk,
        }


class Conversing:
    """A loaded engine and what was measured of it."""

    def __init__(self, config: EngineConfig) -> None:
        self._woken = threading.Event()
        self._engine, self.ready = load(config, wake=self._woken.set)
        self._next_id = 0
        self._counts = (0, 0, 0, 0, 0, 0)
        """Since start: tokens of hits and of queries, blocks loaded and stored, from the disk and to it."""
        self.measured = Measured()

    @property
    def host_cache(self) -> HostCache:
        """The memory behind its KV cache."""
        runner = self._engine._runner
        assert isinstance(runner, Runner)
        return runner.host_cache

    def warm_up(self, prompt: Sequence[int]) -> None:
        """Compute something, and forget how long it took."""
        self._answer([prompt], [])
        self.measured = Measured()

    def converse(self, traffic: Traffic, seed: int) -> list[list[int]]:
        """Hold all conversations; returns their tokens."""
        rng = random.Random(seed)
        texts = [_tokens(rng, traffic.first) for _ in range(traffic.conversations)]
        before, started = self._counts, time.perf_counter()
        for turn in range(traffic.turns):
            # Users answer in any order: in the same one each time, what comes next would be what was just given up.
            order = rng.sample(texts, len(texts))
            ttft = self.measured.later_ttft if turn else self.measured.first_ttft
            for first in range(0, len(order), traffic.at_once):
                some = order[first : first + traffic.at_once]
                for text, answer in zip(some, self._answer(some, ttft), strict=True):
                    text += answer
                    if turn < traffic.turns - 1:
                        text += _tokens(rng, NEW_TOKENS)
        measured = self.measured
        measured.seconds += time.perf_counter() - started
        counts = [new - old for new, old in zip(self._counts, before, strict=True)]
        for name, count in zip(("hits", "queries", "loaded", "stored", "from_disk", "to_disk"), counts, strict=True):
            setattr(measured, name, getattr(measured, name) + count)
        return texts

    def _answer(self, prompts: Sequence[Sequence[int]], ttft: list[float]) -> list[list[int]]:
        """Return the answers; `ttft` gets the seconds to the first token of each."""
        first, sent = self._next_id, time.perf_counter()
        for prompt in prompts:
            tokens = np.array(prompt, np.int32).tobytes()
            self._engine.handle(AddRequest(self._next_id, tokens, SamplingParams(OUTPUT_TOKENS), sent))
            self._next_id += 1
        answers: list[list[int]] = [[] for _ in prompts]
        owner: dict[int, int] = {}
        for report in self._reports(len(prompts)):
            now, stats = time.perf_counter(), report.stats
            self._counts = (
                stats.prefix_hits,
                stats.prefix_queries,
                stats.num_loaded_blocks,
                stats.num_stored_blocks,
                stats.num_disk_loaded,
                stats.num_disk_stored,
            )
            owner |= {each.slot: each.request_id - first for each in report.admitted}
            slots, token_ids = np.frombuffer(report.slots, np.int32), np.frombuffer(report.token_ids, np.int32)
            for slot, token_id in zip(slots.tolist(), token_ids.tolist(), strict=True):
                answer = answers[owner[slot]]
                if not answer:
                    ttft.append(now - sent)
                answer.append(token_id)
        self.measured.tokens += sum(map(len, answers))
        return answers

    def _reports(self, count: int) -> Iterator[StepReport]:
        """Yield reports until so many requests have ended."""
        while count:
            if self._engine.has_work:
                report = self._engine.step()
                count -= len(report.finished)
                yield report
            else:
                self._woken.wait()
                self._woken.clear()


def _tokens(rng: random.Random, count: int) -> list[int]:
    return rng.choices(range(100, VOCABULARY), k=count)


def run(traffic: Traffic, rounds: int, times: float, share: float, folder: str, **fields: Any) -> list[dict[str, Any]]:
    """Measure the engines in turns.

    Args:
        share: of all conversations at their ends that a part of host memory holds.
        folder: on the disk.

    Returns:
        A row for each engine, how many conversations had the same tokens with all engines (not all where sums depend on
        what else is in a step, as in bfloat16, as loads change which requests share one), what the tiers cost prompts
        that share nothing, in seconds, of the CPU too, and by the ratio of throughputs, and the bytes/s.
    """
    num_blocks = traffic.cache_blocks(times)
    config = {"block_size": BLOCK, "num_kv_blocks": num_blocks, "max_num_seqs": traffic.at_once} | fields
    device = Conversing(EngineConfig(**config))
    kv_bytes = device.ready.runner.kv_bytes_per_token
    total = traffic.conversations * traffic.longest * kv_bytes
    space = int(share * total)
    disk = Conversing(EngineConfig(**config, swap_space=space, disk_path=folder, disk_space=2 * total))
    engines = {
        "device": device,
        f"host memory for {share:.0%}": Conversing(EngineConfig(**config, swap_space=space)),
        "host memory for all": Conversing(EngineConfig(**config, swap_space=total)),
        f"host memory for {share:.0%}, and disk": disk,
    }
    print(
        f"{traffic.conversations} conversations of {traffic.turns} turns, {traffic.longest} tokens at the end, "
        f"{traffic.at_once} at once; {num_blocks} blocks of {BLOCK} tokens on the device, "
        f"{space >> 20} MiB of host memory, {kv_bytes} bytes a token"
    )
    touch_memory(os.getpid())
    for each in engines.values():
        each.warm_up(_tokens(random.Random(0), traffic.first))
    num_equal = 0
    for seed in range(rounds):
        names = list(engines)
        turn = seed % len(names)
        texts = [engines[name].converse(traffic, seed + 1) for name in names[turn:] + names[:turn]]
        num_equal += sum(all(text == each[0] for text in each) for each in zip(*texts, strict=True))
    equal = {"equal_conversations": num_equal, "of": rounds * traffic.conversations}
    rows = [engine.measured.row(name) for name, engine in engines.items()]
    return [*rows, equal, _without_reuse(engines, traffic, rounds), _paths(disk, Path(folder))]


def _without_reuse(engines: dict[str, Conversing], traffic: Traffic, rounds: int) -> dict[str, Any]:
    """Prompts that share nothing, in turns both ways round: what the tiers cost requests that do not use them.

    Args:
        engines: the first has no tiers.
    """
    prompts = Traffic(traffic.conversations, 1, traffic.longest, traffic.at_once)
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    cpu_seconds = dict.fromkeys(engines, 0.0)
    for seed in range(2 * rounds):
        for name, engine in list(engines.items())[:: -1 if seed % 2 else 1]:
            engine.measured, cpu_before = Measured(), time.process_time()
            engine.converse(prompts, 10_000 + seed)
            cpu_seconds[name] += time.process_time() - cpu_before
            seconds[name].append(engine.measured.seconds)
    alone, *_ = seconds.values()
    ratios = {name: np.divide(alone, each).round(3) for name, each in seconds.items()}
    return {
        "without_reuse": {name: round(sum(each), 2) for name, each in seconds.items()},
        "cpu_seconds": {name: round(each, 2) for name, each in cpu_seconds.items()},
        "throughput_with_tiers": {name: round(float(np.median(each)), 3) for name, each in ratios.items()},
        "in_turns": {name: each.tolist() for name, each in ratios.items()},
    }


def _paths(engine: Conversing, folder: Path) -> dict[str, Any]:
    """Bytes/s in GB of copies between device and host memory and of the store, beside memory and the disk itself."""
    runner, host_cache = engine.ready.runner, engine.host_cache
    size = runner.kv_bytes_per_token * BLOCK
    count = max(8, (256 << 20) // size)
    blocks = range(min(count, runner.num_blocks, host_cache.num_blocks))
    source, target = np.ones((count, size), np.uint8), np.zeros((count, size), np.uint8)
    store = DiskStore(folder, 2 * count * (size + 8192), size, os.urandom(32))
    names = [b"%016d" % number for number in range(count)]
    plain = os.open(folder / "plain", os.O_RDWR | os.O_CREAT)
    with suppress(OSError):  # As the store: the file system may have no direct I/O.
        fcntl.fcntl(plain, fcntl.F_SETFL, fcntl.fcntl(plain, fcntl.F_GETFL) | os.O_DIRECT)
    piece = mmap.mmap(-1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)

    def write() -> None:
        for at in range(count):
            os.pwrite(plain, piece, at * len(piece))

    def read() -> None:
        for at in range(count):
            os.preadv(plain, [piece], at * len(piece))

    def copy_out() -> None:
        host_cache.copy_out(blocks, blocks)
        host_cache.checksums([0])  # waits

    copies = {
        "device_to_host": min(_seconds(copy_out) for _ in range(_COPIES)),
        "host_to_device": min(_seconds(lambda: host_cache.copy_in([(blocks, blocks)]).item()) for _ in range(_COPIES)),
    }
    measured = {
        "memcpy": min(_seconds(lambda: np.copyto(target, source)) for _ in range(_COPIES)),
        "disk_write": _seconds(write),
        "disk_read": _seconds(read),
        "store_write": _seconds(lambda: [store.write(name, source[at].data, 1) for at, name in enumerate(names)]),
        "store_read": _seconds(lambda: [store.read(name, target[at].data) for at, name in enumerate(names)]),
    }
    store.close()
    os.close(plain)
    rates = {name: round(len(blocks) * size / seconds / 1e9, 2) for name, seconds in copies.items()}
    rates |= {name: round(count * size / seconds / 1e9, 2) for name, seconds in measured.items()}
    return {"GB_per_s": rates}


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.tiers", description=__doc__)
    parser.add_argument("--model", default="builtin://smollm2")
    parser.add_argument("--conversations", type=number(int, 1, 10_000), default=24)
    parser.add_argument("--turns", type=number(int, 2, 100), default=4)
    parser.add_argument("--first", help="tokens of first prompts", type=number(int, 1, 100_000), default=512)
    parser.add_argument("--at-once", type=number(int, 1, 256), default=2)
    parser.add_argument("--times", help="the cache that prefixes exceed", type=number(float, 1, 1000), default=5.0)
    parser.add_argument("--rounds", type=number(int, 1, 100), default=2)
    parser.add_argument(
        "--host", help="share of all conversations that host memory holds", type=number(float, 0.01, 10), default=0.4
    )
    parser.add_argument("--folder", help="on the disk (default: a temporary one)")
    parser.add_argument("--preemption", choices=("auto", "swap"), default="auto")
    given = parser.parse_args(arguments)
    traffic = Traffic(given.conversations, given.turns, given.first, given.at_once)
    print(cpu_model())
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        fields = {"model": given.model, "preemption": given.preemption}
        for row in run(traffic, given.rounds, given.times, given.host, folder, **fields):
            print(json.dumps(row))


if __name__ == "__main__":
    main()

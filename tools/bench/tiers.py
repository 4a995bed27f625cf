"""Conversations whose prefixes are several times the device's KV cache: with the device alone, and with host memory
behind it, in turns in one run and with equal tokens."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inflight_engine.engine_process import load
from inflight_engine.messages import AddRequest, StepReport
from inflight_engine.request import SamplingParams
from inflight_settings.engine import EngineConfig
from inflight_settings.flag_types import number
from tools.measure.report import cpu_model

BLOCK = 16
VOCABULARY = 40_000
OUTPUT_TOKENS = 16
NEW_TOKENS = 64
"""Tokens of a user, in each turn."""


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

    ttft: list[float] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0
    hits: int = 0
    queries: int = 0
    loaded: int = 0
    stored: int = 0

    def row(self, name: str) -> dict[str, Any]:
        p50, p95 = np.percentile(self.ttft, (50, 95)) * 1e3
        return {
            "engine": name,
            "ttft_p50_ms": round(float(p50), 1),
            "ttft_p95_ms": round(float(p95), 1),
            "output_tokens_per_s": round(self.tokens / self.seconds, 1),
            "hit_rate": round(self.hits / self.queries, 3),
            "blocks_loaded": self.loaded,
            "blocks_stored": self.stored,
        }


class Conversing:
    """A loaded engine and what was measured of it."""

    def __init__(self, config: EngineConfig) -> None:
        self._engine, self.ready = load(config, wake=lambda: None)
        self._next_id = 0
        self._counts = (0, 0, 0, 0)
        """Since start: tokens of hits and of queries, blocks loaded and stored."""
        self.measured = Measured()

    def warm_up(self, prompt: Sequence[int]) -> None:
        """Compute something, and forget how long it took."""
        self._answer([prompt])
        self.measured = Measured()

    def converse(self, traffic: Traffic, seed: int) -> list[list[int]]:
        """Hold all conversations; returns their tokens."""
        rng = random.Random(seed)
        texts = [_tokens(rng, traffic.first) for _ in range(traffic.conversations)]
        before, started = self._counts, time.perf_counter()
        for turn in range(traffic.turns):
            for first in range(0, len(texts), traffic.at_once):
                some = texts[first : first + traffic.at_once]
                for text, answer in zip(some, self._answer(some), strict=True):
                    text += answer
                    if turn < traffic.turns - 1:
                        text += _tokens(rng, NEW_TOKENS)
        measured = self.measured
        measured.seconds += time.perf_counter() - started
        hits, queries, loaded, stored = (new - old for new, old in zip(self._counts, before, strict=True))
        measured.hits += hits
        measured.queries += queries
        measured.loaded += loaded
        measured.stored += stored
        return texts

    def _answer(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        first, sent = self._next_id, time.perf_counter()
        for prompt in prompts:
            tokens = np.array(prompt, np.int32).tobytes()
            self._engine.handle(AddRequest(self._next_id, tokens, SamplingParams(OUTPUT_TOKENS), sent))
            self._next_id += 1
        answers: list[list[int]] = [[] for _ in prompts]
        owner: dict[int, int] = {}
        for report in self._reports():
            now, stats = time.perf_counter(), report.stats
            self._counts = (
                stats.prefix_hits,
                stats.prefix_queries,
                stats.num_loaded_blocks,
                stats.num_stored_blocks,
            )
            owner |= {each.slot: each.request_id - first for each in report.admitted}
            slots, token_ids = np.frombuffer(report.slots, np.int32), np.frombuffer(report.token_ids, np.int32)
            for slot, token_id in zip(slots.tolist(), token_ids.tolist(), strict=True):
                answer = answers[owner[slot]]
                if not answer:
                    self.measured.ttft.append(now - sent)
                answer.append(token_id)
        self.measured.tokens += sum(map(len, answers))
        return answers

    def _reports(self) -> Iterator[StepReport]:
        while self._engine.has_work:
            report = self._engine.step()
            if report is not None:
                yield report


def _tokens(rng: random.Random, count: int) -> list[int]:
    return rng.choices(range(100, VOCABULARY), k=count)


def run(traffic: Traffic, rounds: int, times: float, **fields: Any) -> list[dict[str, Any]]:
    """Measure both engines in turns.

    Raises:
        AssertionError: they give different tokens.
    """
    num_blocks = traffic.cache_blocks(times)
    config = {"block_size": BLOCK, "num_kv_blocks": num_blocks, "max_num_seqs": traffic.at_once} | fields
    device = Conversing(EngineConfig(**config))
    kv_bytes = device.ready.runner.kv_bytes_per_token
    space = int(1.5 * traffic.conversations * traffic.longest) * kv_bytes
    host = Conversing(EngineConfig(**config, swap_space=space))
    print(
        f"{traffic.conversations} conversations of {traffic.turns} turns, {traffic.longest} tokens at the end, "
        f"{traffic.at_once} at once; {num_blocks} blocks of {BLOCK} tokens on the device, "
        f"{space >> 20} MiB of host memory, {kv_bytes} bytes a token"
    )
    for each in (device, host):
        each.warm_up(_tokens(random.Random(0), traffic.first))
    for seed in range(rounds):
        order = (device, host) if seed % 2 == 0 else (host, device)
        texts = [each.converse(traffic, seed + 1) for each in order]
        assert texts[0] == texts[1], "the engines give different tokens"
    return [device.measured.row("device"), host.measured.row("device and host memory")]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.tiers", description=__doc__)
    parser.add_argument("--model", default="builtin://smollm2")
    parser.add_argument("--conversations", type=number(int, 1, 10_000), default=24)
    parser.add_argument("--turns", type=number(int, 2, 100), default=4)
    parser.add_argument("--first", help="tokens of first prompts", type=number(int, 1, 100_000), default=512)
    parser.add_argument("--at-once", type=number(int, 1, 256), default=2)
    parser.add_argument("--times", help="the cache that prefixes exceed", type=number(float, 1, 1000), default=5.0)
    parser.add_argument("--rounds", type=number(int, 1, 100), default=2)
    parser.add_argument("--preemption", choices=("auto", "swap"), default="auto")
    given = parser.parse_args(arguments)
    traffic = Traffic(given.conversations, given.turns, given.first, given.at_once)
    print(cpu_model())
    for row in run(traffic, given.rounds, given.times, model=given.model, preemption=given.preemption):
        print(json.dumps(row))


if __name__ == "__main__":
    main()

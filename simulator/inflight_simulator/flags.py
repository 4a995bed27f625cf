"""Command-line flags that several commands share."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from inflight_engine.config import EngineConfig
from inflight_engine.flag_types import number
from inflight_engine.scheduling.config import PREEMPTION_MODES
from inflight_engine.scheduling.policies import POLICIES
from inflight_engine.scheduling.victims import VICTIMS

DEFAULTS = {field.name: field.default for field in fields(EngineConfig)}
"""The engine's defaults, by field."""
COST_FLAGS = {
    "base_s": ("--cost-base-ms", 1e-3, "milliseconds of any step"),
    "decode_seq_s": ("--cost-decode-seq-us", 1e-6, "microseconds for each sequence that decodes"),
    "prefill_token_s": ("--cost-prefill-token-us", 1e-6, "microseconds for each prompt token"),
    "decode_kv_token_s": ("--cost-decode-kv-token-us", 1e-6, "microseconds for each token that decodes attend to"),
    "prefill_context_token_s": (
        "--cost-prefill-context-token-us",
        1e-6,
        "microseconds for each prompt token and token that it attends to",
    ),
    "copied_token_s": ("--cost-copied-token-us", 1e-6, "microseconds for each token copied to or from host memory"),
}
"""Field of CostModel: its flag, seconds in the flag's unit, help."""

_MOST_SEQS, _MOST_BLOCKS, _MOST_BLOCK_TOKENS = 100_000, 100_000_000, 1_000_000
"""The simulator has rows of memory for each of them."""

CONTINUOUS_ONLY = (
    "--max-num-batched-tokens",
    "--kv-headroom",
    "--scheduling-policy",
    "--priority-aging",
    "--ttft-target",
    "--ttft-per-1k-tokens",
    "--late-share",
    "--class-weight",
    "--preemption",
    "--preemption-victim",
    "--swap-space-blocks",
    "--no-prefix-caching",
    "--no-chunked-prefill",
)
"""Flags that static batching has no use for."""

PREFILL_ONLY = ("--max-num-batched-tokens", "--no-chunked-prefill")
"""Flags that say how prompts are computed."""


def attribute(flag: str) -> str:
    """Returns the name of a flag's value among the parsed flags."""
    return flag.removeprefix("--").replace("-", "_")


finite = partial(number, float, most=sys.float_info.max)
"""A parser of a finite number of at least `least`."""


def _class_weight(text: str) -> tuple[str, float]:
    name, equals, weight = text.rpartition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=WEIGHT, as in interactive=4")
    value: float = finite(1e-6)(weight)
    return name, value


def add_trace_flags(parser: argparse.ArgumentParser) -> None:
    """Adds ARRIVALS, and the flags of its transformations."""
    parser.add_argument("arrivals", type=Path, metavar="ARRIVALS", help="file of requests, in one of the formats below")
    group = parser.add_argument_group("what to take of ARRIVALS, in this order")
    group.add_argument("--duration", type=finite(0.001), metavar="S", help="use the first S seconds only")
    group.add_argument("--every", type=number(int, 1), default=1, metavar="N", help="use every Nth request only")
    for name, text in (
        ("--scale-prompt", "multiply prompt lengths by F"),
        ("--scale-output", "multiply output lengths by F"),
        ("--speed", "divide the times between arrivals by F"),
    ):
        group.add_argument(name, type=finite(1e-6), default=1.0, metavar="F", help=text)


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """The engine's flags about scheduling, under its names and with its defaults, and the cost model.

    Unset flags are None, to distinguish them from defaults.
    """
    group = parser.add_argument_group("engine, as in `inflight-engine serve`")

    def add(name: str, text: str, **how: Any) -> None:
        default = DEFAULTS.get(attribute(name))
        shown = f" (default {default:g})" if isinstance(default, int | float) else f" (default {default})"
        group.add_argument(name, help=text + (shown if default is not None else ""), **how)

    count = number(int, 1)
    add("--max-num-seqs", "most requests running at once", type=number(int, 1, _MOST_SEQS), metavar="N")
    add("--max-num-batched-tokens", "most tokens computed in one step", type=count, metavar="N")
    blocks = "blocks of the KV cache (default: unlimited)"
    add("--num-kv-blocks", blocks, type=number(int, 1, _MOST_BLOCKS), metavar="N")
    add("--block-size", "tokens in a KV block", type=number(int, 1, _MOST_BLOCK_TOKENS), metavar="N")
    add("--max-model-len", "longest prompt plus output (default: that of the longest request)", type=count, metavar="N")
    add("--kv-headroom", "share of the KV cache left to running requests", type=number(float, 0, 0.9), metavar="SHARE")
    policy = "order of waiting requests; sjf knows the output lengths (default: deadline with --ttft-target, else fcfs)"
    group.add_argument("--scheduling-policy", help=policy, choices=tuple(POLICIES))
    add("--priority-aging", "seconds of waiting that count as one step of priority", type=finite(1e-6), metavar="S")
    add("--ttft-target", "seconds to the first token, for deadline (default: none)", type=finite(0.001), metavar="S")
    grows = "seconds that each 1,000 tokens of a prompt add to it"
    add("--ttft-per-1k-tokens", grows, type=number(float, 0, 60), metavar="S")
    late = "share of picks that deadline gives to late requests"
    add("--late-share", late, type=number(float, 0.001, 1), metavar="SHARE")
    add(
        "--class-weight",
        "weight of a class (default 1); may be repeated",
        type=_class_weight,
        metavar="NAME=WEIGHT",
        action="append",
    )
    add("--preemption", "what happens to the KV cache of a preempted request", choices=PREEMPTION_MODES)
    add("--preemption-victim", "request that is preempted when the KV cache is full", choices=tuple(VICTIMS))
    add(
        "--swap-space-blocks",
        "blocks of host memory for preempted requests (default 0)",
        type=number(int, 0, _MOST_BLOCKS),
        metavar="N",
    )
    add("--no-prefix-caching", "disable the prefix cache", action="store_const", const=True)
    add(
        "--no-chunked-prefill",
        "compute whole prompts in separate steps, for which decodes wait",
        action="store_const",
        const=True,
    )
    costs = parser.add_argument_group("how long a step takes (default: Llama-3-8B on an H100, from data sheets)")
    costs.add_argument(
        "--cost",
        metavar="unit|FILE",
        help="unit: a step takes 1 s and prefill is free, no budget bounds it; FILE: from `calibrate --out`",
    )
    for name, unit, text in COST_FLAGS.values():
        costs.add_argument(name, type=finite(0), metavar="MS" if unit == 1e-3 else "US", help=text)

"""Command-line flags that several commands share."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from inflight_settings.engine import EngineConfig
from inflight_settings.flag_types import number
from inflight_settings.flags import add_flag
from inflight_settings.limits import DEFAULT_LIMITS
from inflight_settings.scheduling import SchedulingSettings
from inflight_settings.setting import settings_of

_MOST_SEQS, _MOST_BLOCKS, _MOST_BLOCK_TOKENS = 100_000, 100_000_000, 1_000_000
"""The simulator allocates memory for each of them."""

_ENGINE, _SCHEDULING = settings_of(EngineConfig), settings_of(SchedulingSettings)

SETTINGS = {
    "max_num_seqs": replace(_ENGINE["max_num_seqs"], le=_MOST_SEQS),
    "max_num_batched_tokens": replace(
        _ENGINE["max_num_batched_tokens"],
        help="capacity: most tokens computed in one step",
        default=DEFAULT_LIMITS.max_num_batched_tokens,
    ),
    "num_kv_blocks": replace(
        _ENGINE["num_kv_blocks"], help="blocks of the KV cache (default: unlimited)", le=_MOST_BLOCKS
    ),
    "block_size": replace(_ENGINE["block_size"], le=_MOST_BLOCK_TOKENS),
    "max_model_len": replace(
        _ENGINE["max_model_len"], help="longest prompt plus output, in tokens (default: that of the longest request)"
    ),
    **{name: each for name, each in _SCHEDULING.items() if name != "classes"},
    "policy": replace(
        _SCHEDULING["policy"],
        help="order of waiting requests; sjf knows output lengths (default: deadline with --ttft-target, else fcfs)",
    ),
}
"""Settings of the engine that are flags here too."""

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

PREFILL_ONLY = ("max_num_batched_tokens", "no_chunked_prefill")
"""Flags of the computation of prompts, by attribute."""

CONTINUOUS_ONLY = (
    *PREFILL_ONLY,
    "class_weight",
    "swap_space_blocks",
    *(name for name in _SCHEDULING if name in SETTINGS),
)
"""Flags that static batching has no use for, by attribute."""


def flag_of(name: str) -> str:
    """The flag of an attribute of parsed flags."""
    return f"--{SETTINGS[name].flag}" if name in SETTINGS else "--" + name.replace("_", "-")


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
    for name, setting in SETTINGS.items():
        add_flag(group, name, setting)
    parser.set_defaults(**dict.fromkeys(SETTINGS))
    group.add_argument(
        "--class-weight",
        help="weight of a class (default 1); may be repeated",
        type=_class_weight,
        metavar="NAME=WEIGHT",
        action="append",
    )
    group.add_argument(
        "--swap-space-blocks",
        help="blocks of host memory behind the KV cache (default 0)",
        type=number(int, 0, _MOST_BLOCKS),
        metavar="N",
    )
    group.add_argument(
        "--no-chunked-prefill",
        help="compute whole prompts in separate steps, for which decodes wait",
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

"""Command-line flags of a fleet simulation, for all commands that run one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from inflight_settings.flag_types import number
from inflight_settings.limits import HIGHEST_LIMITS, Limits
from inflight_simulator.errors import InputError
from inflight_simulator.flags import SETTINGS
from inflight_simulator.fleet.config import ROUTINGS, START_LIMITS, FleetConfig, ReplicaModel, RequestTargets
from inflight_simulator.fleet.replica_file import read_replica

_UNITS = {"ms": 1e-3, "s": 1.0}
_DEFAULTS = FleetConfig()
_seconds_number = partial(number, float, most=1e6)
_LEAST_TARGET_S = 0.001


def seconds(text: str) -> float:
    """Parses seconds: `500ms`, `0.5s` or `0.5`."""
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    value: float = _seconds_number(0)(text.removesuffix(unit))
    return value * _UNITS.get(unit, 1.0)


def target(text: str) -> float:
    """Parses `seconds` of a target, which have a minimum."""
    value = seconds(text)
    if value < _LEAST_TARGET_S:
        raise argparse.ArgumentTypeError(f"must be at least {_LEAST_TARGET_S * 1000:g}ms, not {text}")
    return value


def limits(text: str) -> tuple[bool, Limits]:
    """Parses `fixed:256/2048`, `autopilot`, `autopilot:256/2048`: whether the operator tunes, and the first limits."""
    kind, colon, pair = text.partition(":")
    seqs, slash, tokens = pair.partition("/")
    if kind == "autopilot" and not colon:
        return True, START_LIMITS
    if kind not in ("fixed", "autopilot") or not slash:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not fixed:SEQS/TOKENS, as in fixed:256/2048, nor autopilot or autopilot:SEQS/TOKENS"
        )
    return kind == "autopilot", Limits(
        number(int, 1, HIGHEST_LIMITS.max_num_seqs)(seqs), number(int, 1, HIGHEST_LIMITS.max_num_batched_tokens)(tokens)
    )


def add_arrivals(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "arrivals", type=Path, metavar="ARRIVALS", help="file of requests, in one of the formats below; may be gzipped"
    )


def add_fleet_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of arrivals, fleet and targets, without the scaler."""
    count = number(int, 1, 100_000)
    add_arrivals(parser)
    fleet = parser.add_argument_group("fleet")
    fleet.add_argument(
        "--replica",
        type=Path,
        metavar="FILE",
        help="JSON file that describes a replica (default: the reference replica, see below)",
    )
    fleet.add_argument(
        "--limits",
        type=limits,
        metavar="LIMITS",
        help="fixed:SEQS/TOKENS, or autopilot[:SEQS/TOKENS]: the operator's tuning changes them from there"
        " (default fixed:256/2048; with --scaler autopilot: autopilot)",
    )
    fleet.add_argument(
        "--routing",
        choices=ROUTINGS,
        default=_DEFAULTS.routing,
        help="least-requests: fewest requests that have not ended; least-work: fewest prompt tokens to be computed"
        " before its own; gateway: the gateway's picker and queue"
        " (default %(default)s)",
    )
    fleet.add_argument(
        "--policy",
        choices=SETTINGS["policy"].choices,
        help="order of waiting requests (default fcfs; with --scaler autopilot: deadline, as in a service with"
        " targets)",
    )
    fleet.add_argument(
        "--start-up",
        type=seconds,
        default=60.0,
        metavar="S",
        help="time from the order of a pod until it is ready (default 60)",
    )
    fleet.add_argument("--min-replicas", type=count, default=1, metavar="N", help="(default 1)")
    fleet.add_argument(
        "--max-replicas", type=count, default=_DEFAULTS.max_replicas, metavar="N", help="(default %(default)s)"
    )
    fleet.add_argument("--initial", type=count, metavar="N", help="replicas at the start (default: --min-replicas)")
    fleet.add_argument("--seed", type=number(int, 0), default=0, metavar="N", help="of the steps' noise (default 0)")
    add_target_flags(parser)


def add_json_flag(output: argparse._ArgumentGroup) -> None:
    output.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=Path("-"),
        metavar="FILE",
        help="write all numbers as a JSON object; without FILE or with -: to standard output, alone",
    )


def print_numbers(flags: argparse.Namespace, numbers: object, text: Callable[[], str]) -> None:
    """Prints or writes the results, by the flag of `add_json_flag`. Raises OSError where the file cannot be written."""
    if flags.json == Path("-"):
        print(msgspec.json.encode(numbers).decode())
        return
    if flags.json is not None:
        flags.json.write_bytes(msgspec.json.encode(numbers) + b"\n")
    print(text())


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    targets = _DEFAULTS.targets
    aims = parser.add_argument_group("targets of each request")
    aims.add_argument(
        "--ttft", type=target, default=targets.ttft, metavar="S", help="time to first token (default 0.5)"
    )
    aims.add_argument(
        "--long-ttft",
        type=target,
        metavar="S",
        help=f"of prompts over {targets.long_prompt} tokens (default: twice --ttft)",
    )
    aims.add_argument(
        "--ttft-rule",
        choices=("plain", "prefill"),
        default="plain",
        help="prefill: a request has at least --ttft + twice the time that computing its prompt alone takes"
        " (default plain)",
    )
    aims.add_argument(
        "--tpot", type=target, default=targets.tpot, metavar="S", help="mean time per output token (default 0.05)"
    )


def fleet_config(flags: argparse.Namespace) -> FleetConfig:
    """
    Raises:
        InputError: bounds contradict each other, or the replica's file is none.
    """
    initial = flags.min_replicas if flags.initial is None else flags.initial
    if not flags.min_replicas <= initial <= flags.max_replicas:
        raise InputError(
            f"--initial {initial} must be between --min-replicas {flags.min_replicas} and "
            f"--max-replicas {flags.max_replicas}"
        )
    replica = ReplicaModel() if flags.replica is None else read_replica(flags.replica)
    product = getattr(flags, "scaler", "") == "autopilot"
    tuning, start = flags.limits or (product, START_LIMITS)
    return FleetConfig(
        replica=replica,
        limits=start,
        routing=flags.routing,
        start_up_s=flags.start_up,
        min_replicas=flags.min_replicas,
        max_replicas=flags.max_replicas,
        initial_replicas=initial,
        policy=flags.policy or ("deadline" if product else _DEFAULTS.policy),
        tuning=tuning,
        targets=request_targets(flags),
        seed=flags.seed,
    )


def request_targets(flags: argparse.Namespace) -> RequestTargets:
    return RequestTargets(
        ttft=flags.ttft,
        long_ttft=2 * flags.ttft if flags.long_ttft is None else flags.long_ttft,
        tpot=flags.tpot,
        prefill_factor=2.0 if flags.ttft_rule == "prefill" else None,
    )

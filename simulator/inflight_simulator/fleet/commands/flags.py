"""Command-line flags of a fleet simulation, for all commands that run one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from inflight_gateway.pick.load import PEER_SLOWNESS
from inflight_operator.decide.replicas.start_up import Phases
from inflight_settings.flag_types import number
from inflight_settings.limits import HIGHEST_LIMITS, Limits
from inflight_simulator.errors import InputError
from inflight_simulator.flags import SETTINGS
from inflight_simulator.fleet.commands.replica_file import read_replica
from inflight_simulator.fleet.config import (
    ROUTINGS,
    START_LIMITS,
    FleetConfig,
    GatewayModel,
    PrefillSet,
    ReplicaModel,
    RequestTargets,
    undivided,
)
from inflight_simulator.fleet.requests import Flood, Requests, read_requests
from inflight_simulator.fleet.service import read_gateway_spec

_UNITS = {"ms": 1e-3, "s": 1.0}
_DEFAULTS = FleetConfig()
_seconds_number = partial(number, float, most=1e6)
_LEAST_TARGET_S = 0.001


def seconds(text: str) -> float:
    """Parses seconds: `500ms`, `0.5s` or `0.5`."""
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    value: float = _seconds_number(0)(text.removesuffix(unit))
    return value * _UNITS.get(unit, 1.0)


def start_up(text: str) -> Phases:
    """Parses `seconds` of a whole start-up, or of phases: `scheduled=0.3,image=1,weights=2.5`; others take none."""
    if "=" not in text:
        return undivided(seconds(text))
    given = [part.partition("=") for part in text.split(",")]
    names = [name for name, _, _ in given]
    for name in names:
        if name not in Phases._fields or names.count(name) > 1:
            raise argparse.ArgumentTypeError(
                f"{name!r} is not one of the phases {', '.join(Phases._fields)}, each at most once"
            )
    return undivided(0.0)._replace(**{name: seconds(value) for name, _, value in given})


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
    highest = HIGHEST_LIMITS
    found = Limits(number(int, 1, highest.max_num_seqs)(seqs), number(int, 1, highest.max_num_batched_tokens)(tokens))
    return kind == "autopilot", found


def prefill_limits(text: str) -> Limits:
    """Parses `fixed:4/8192`."""
    if not text.startswith("fixed:") or "/" not in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not fixed:SEQS/TOKENS, as in fixed:4/8192: no operator tunes the prefill set here"
        )
    return limits(text)[1]


def flood(text: str) -> Flood:
    """Parses `TENANT:RATE`, or with seconds `TENANT:RATE@FROM-UNTIL`."""
    load, _, span = text.partition("@")
    tenant, colon, rate = load.rpartition(":")
    begin, dash, until = span.partition("-")
    if not colon or not tenant or bool(span) != bool(dash):
        raise argparse.ArgumentTypeError(f"{text!r} is not TENANT:RATE or TENANT:RATE@FROM-UNTIL, as in acme:50@60-120")
    found = Flood(tenant, number(float, 0, 1e6)(rate))
    if span:
        found = replace(found, from_s=_seconds_number(0)(begin), until_s=_seconds_number(0)(until))
    return found


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
        " before its own; gateway: the gateway, with its hold queue's bounds"
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
        type=start_up,
        default=_DEFAULTS.start_up,
        metavar="PHASES",
        help="seconds from the order of a pod until it takes requests, as one number or by phase:"
        " scheduled=0.3,image=1,weights=2.5,engine=2,endpoints=0.5 (default 60)",
    )
    fleet.add_argument("--min-replicas", type=count, default=1, metavar="N", help="(default 1)")
    fleet.add_argument(
        "--max-replicas", type=count, default=_DEFAULTS.max_replicas, metavar="N", help="(default %(default)s)"
    )
    fleet.add_argument("--initial", type=count, metavar="N", help="replicas at the start (default: --min-replicas)")
    fleet.add_argument("--seed", type=number(int, 0), default=0, metavar="N", help="of the steps' noise (default 0)")
    add_target_flags(parser)
    _add_gateway_flags(parser)


def _add_gateway_flags(parser: argparse.ArgumentParser) -> None:
    model = _DEFAULTS.gateway
    gateway = parser.add_argument_group("tenants, and the gateway of --routing gateway")
    gateway.add_argument(
        "--service",
        type=Path,
        metavar="FILE.yaml",
        help="InferenceService whose spec.gateway applies: hold, tenants with weights and limits, defaultLimits, scores"
        " (default: the defaults of its fields)",
    )
    gateway.add_argument(
        "--flood",
        type=flood,
        action="append",
        default=[],
        metavar="TENANT:RATE[@FROM-UNTIL]",
        help="add requests of a tenant: so many per second on average, from and until these seconds after the first"
        " arrival (default: all the time), with the sizes of requests of ARRIVALS; may be repeated",
    )
    gateway.add_argument(
        "--gateway-pods",
        type=number(int, 1, 1000),
        default=model.pods,
        metavar="N",
        help="gateway pods; requests arrive at each in turn, and one of them owns the service (default %(default)s)",
    )
    gateway.add_argument(
        "--gateway-hop",
        type=seconds,
        default=model.hop_s,
        metavar="S",
        help="time that a message between two gateway pods takes (default %(default)s)",
    )
    gateway.add_argument(
        "--owner-ends",
        type=seconds,
        metavar="S",
        help="seconds after the first arrival at which the pod that owns the service ends; the next one goes on with"
        " what the others report (default: never)",
    )
    apart = parser.add_argument_group("prefill and decode apart, with --routing gateway")
    apart.add_argument(
        "--disaggregate",
        choices=("Auto", "Fixed"),
        help="spec.disaggregation.mode: replicas of a prefill set compute all prompts, or some, and hand requests over"
        " after their first token, all or where that pays (default: there is no such set)",
    )
    apart.add_argument(
        "--prefill-replicas",
        type=number(int, 1, 100_000),
        metavar="N",
        help="replicas of the prefill set, beside those of the scaler, which does not change them",
    )
    apart.add_argument(
        "--prefill-limits",
        type=prefill_limits,
        metavar="LIMITS",
        help="fixed:SEQS/TOKENS of the prefill set (default: those of the other replicas at their start)",
    )
    add_transfer_rate_flag(apart)


def add_transfer_rate_flag(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--transfer-rate",
        type=number(float, 1, 1e12),
        metavar="TOKENS",
        help="tokens whose keys and values a replica reads from others in a second (default: a"
        f" {PEER_SLOWNESS:g}th of what it copies from host memory, by copied_token_s of its cost)",
    )


def read_load(flags: argparse.Namespace) -> Requests:
    """Returns the requests of the file, with the floods.

    Raises:
        InputError: as `read_requests`.
    """
    requests = read_requests(flags.arrivals)
    for each in flags.flood:
        requests = requests.with_flood(each, flags.seed)
    return requests


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
    if flags.owner_ends is not None and flags.gateway_pods < 2:
        raise InputError("--owner-ends needs --gateway-pods of at least 2: no pod is left to own the service")
    replica = ReplicaModel() if flags.replica is None else read_replica(flags.replica)
    product = getattr(flags, "scaler", "") == "autopilot"
    tuning, start = flags.limits or (product, START_LIMITS)
    return FleetConfig(
        replica=replica,
        limits=start,
        routing=flags.routing,
        start_up=flags.start_up,
        min_replicas=flags.min_replicas,
        max_replicas=flags.max_replicas,
        initial_replicas=initial,
        policy=flags.policy or ("deadline" if product else _DEFAULTS.policy),
        tuning=tuning,
        targets=request_targets(flags),
        seed=flags.seed,
        gateway=GatewayModel(
            spec={} if flags.service is None else read_gateway_spec(flags.service),
            pods=flags.gateway_pods,
            hop_s=flags.gateway_hop,
            owner_ends_s=flags.owner_ends,
        ),
        prefill=_prefill_set(flags, replica),
    )


def _prefill_set(flags: argparse.Namespace, replica: ReplicaModel) -> PrefillSet | None:
    """Raises InputError: the flags contradict each other, or say too little."""
    if (flags.disaggregate is None) != (flags.prefill_replicas is None):
        raise InputError("--disaggregate and --prefill-replicas need each other")
    if flags.disaggregate is None:
        if flags.prefill_limits is not None:
            raise InputError("--prefill-limits needs --disaggregate")
        return None
    if flags.routing != "gateway":
        raise InputError("--disaggregate needs --routing gateway")
    return PrefillSet(
        flags.disaggregate, flags.prefill_replicas, transfer_rate(flags, replica, "the replica"), flags.prefill_limits
    )


def transfer_rate(flags: argparse.Namespace, replica: ReplicaModel, name: str) -> float:
    """Raises InputError: it is not given, and the cost of the replica does not tell it."""
    copied_token_s = replica.cost.copied_token_s
    if flags.transfer_rate is None and not copied_token_s:
        raise InputError(f"--disaggregate needs --transfer-rate: the cost of {name} has no copied_token_s")
    return float(flags.transfer_rate or 1 / (PEER_SLOWNESS * copied_token_s))


def request_targets(flags: argparse.Namespace) -> RequestTargets:
    return RequestTargets(
        ttft=flags.ttft,
        long_ttft=2 * flags.ttft if flags.long_ttft is None else flags.long_ttft,
        tpot=flags.tpot,
        prefill_factor=2.0 if flags.ttft_rule == "prefill" else None,
    )

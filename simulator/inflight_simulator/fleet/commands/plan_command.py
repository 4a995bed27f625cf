"""`inflight-simulate plan`, and a plan as text."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from inflight_settings.flag_types import number, size
from inflight_simulator.errors import InputError
from inflight_simulator.flags import SETTINGS
from inflight_simulator.fleet.commands.apart import SEEDS, Comparison, Pair, Sets
from inflight_simulator.fleet.commands.flags import (
    add_arrivals,
    add_target_flags,
    add_transfer_rate_flag,
    request_targets,
    transfer_rate,
)
from inflight_simulator.fleet.commands.plan import (
    KV_CACHE,
    MOST,
    SLOTS,
    TPOT,
    TTFT,
    Plan,
    ReplicaPlan,
    Served,
    first_to_break,
    plan,
)
from inflight_simulator.fleet.commands.replica_file import FORMAT, MOST_DISK_TOKENS, MOST_HOST_TOKENS, read_replica
from inflight_simulator.fleet.config import ROUTINGS, FleetConfig, PrefillSet, ReplicaModel, RequestTargets
from inflight_simulator.fleet.requests import read_requests
from inflight_simulator.trace_files import FORMATS

REFERENCE = "reference"
_DEFAULTS = FleetConfig()
_MOST_REPLICAS = 1000

EPILOG = f"""\
For each replica file: limits by the cost model (or the same with a larger token budget, where that keeps more requests
in target in a simulation), replicas by the capacity model, and the smallest number of fixed replicas that keeps the
targets in a simulation, with its cost. Then the first bottleneck as the load grows, and the attainment of these
replicas at twice the load. Each file takes 4 to 12 simulations of ARRIVALS, and 2 to 6 more for each --host-memory
alone and with each --disk.

For each --disaggregate: the same number of replicas as one set and as two, some of which compute prompts for the
others, of the best split that was found: as many as one set needs, and the fewest with which a split keeps the targets.
Each fleet is simulated with {SEEDS} seeds. A prefill set pays where a split hands requests over and keeps at least two
more in target with each seed than one set does with any, with either number of replicas. With `Fixed`, each set has the
limits for its own part of the requests; one set has those of the plan, or with fewer requests at once or as many as
two sets, or larger steps, where that keeps more requests in target, so it may need other numbers than those above. With
`Auto`, both sets have the limits of one set, or with more requests at once and larger steps, where that keeps more in
target. It takes up to 100 simulations, `Auto` up to 300, and 3 to 9 where one replica is enough.

Without --replica: the reference replica of `inflight-simulate fleet`. Examples from data sheets, not measured, are in
simulator/examples/replicas. `inflight-simulate calibrate` measures the cost model of an engine of your own.

{FORMATS}

{FORMAT}

example:
  inflight-simulate plan ARRIVALS --replica simulator/examples/replicas/llama-3-8b-h100.json \\
    --replica simulator/examples/replicas/llama-3-8b-l40s.json --ttft 500ms --tpot 50ms"""


def add_plan_flags(parser: argparse.ArgumentParser) -> None:
    add_arrivals(parser)
    parser.add_argument(
        "--replica",
        type=Path,
        metavar="FILE",
        action="append",
        help="JSON file that describes a replica; repeat it to compare several",
    )
    parser.add_argument(
        "--price",
        type=number(float, 0, 1e9),
        metavar="P",
        help="price of a replica-hour; overrides the prices in the files",
    )
    parser.add_argument(
        "--host-memory",
        type=size,
        metavar="SIZE",
        action="append",
        default=[],
        help="say what this much host memory behind each replica's KV cache brings, as in 64Gi; may be repeated",
    )
    parser.add_argument(
        "--disk",
        type=size,
        metavar="SIZE",
        action="append",
        default=[],
        help="say what a disk of this size behind each --host-memory brings, as in 1Ti, at the"
        " disk_read_token_s and disk_write_token_s of the replica file; may be repeated",
    )
    parser.add_argument(
        "--attainment",
        type=number(float, 0.01, 1.0),
        default=0.99,
        metavar="SHARE",
        help="share of requests that must keep their targets (default 0.99)",
    )
    parser.add_argument(
        "--max-replicas",
        type=number(int, 1, 100_000),
        default=_MOST_REPLICAS,
        metavar="N",
        help="largest number of replicas to try (default %(default)s)",
    )
    parser.add_argument(
        "--routing", choices=ROUTINGS, default=_DEFAULTS.routing, help="as in `fleet` (default %(default)s)"
    )
    parser.add_argument(
        "--policy",
        choices=SETTINGS["policy"].choices,
        default=_DEFAULTS.policy,
        help="order of waiting requests (default fcfs)",
    )
    parser.add_argument("--seed", type=number(int, 0), default=0, metavar="N", help="of the steps' noise (default 0)")
    parser.add_argument(
        "--disaggregate",
        choices=("Auto", "Fixed"),
        action="append",
        default=[],
        help="say whether a prefill set of this spec.disaggregation.mode pays, with the same number of replicas in all;"
        " needs --routing gateway; may be repeated",
    )
    add_transfer_rate_flag(parser)
    add_target_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of sentences")


def run_plan(flags: argparse.Namespace) -> int:
    """Raises InputError. Status 1: none of the replicas keeps the targets."""
    models = _models(flags.replica or [], flags.price)
    _check_tiers(flags.host_memory, flags.disk, models)
    apart = {name: _prefill_sets(flags, model, name) for name, model in models.items()}
    config = FleetConfig(
        routing=flags.routing,
        max_replicas=flags.max_replicas,
        policy=flags.policy,
        targets=request_targets(flags),
        seed=flags.seed,
    )
    requests = read_requests(flags.arrivals)
    if flags.host_memory and not requests.hash_ids:
        print(
            "note: --host-memory brings nothing here: ARRIVALS does not say which prompts share a prefix",
            file=sys.stderr,
        )
    found = plan(requests, models, config, flags.attainment, flags.host_memory, flags.disk, apart)
    print(msgspec.json.encode(found).decode() if flags.json else plan_text(found, config.targets))
    return 0 if any(each.checked is not None for each in found.replicas) else 1


def _models(paths: list[Path], price: float | None) -> dict[str, ReplicaModel]:
    """Reads replicas, by file name without its ending.

    Raises:
        InputError: two files have one name, or a file is none.
    """
    models = {path.stem: read_replica(path) for path in paths} if paths else {REFERENCE: ReplicaModel()}
    if paths and len(models) < len(paths):
        raise InputError("two files of --replica have the same name, by which the plan calls them")
    if price is not None:
        models = {name: replace(model, price=price) for name, model in models.items()}
    return models


def _check_tiers(host_memory: Sequence[int], disks: Sequence[int], models: Mapping[str, ReplicaModel]) -> None:
    """Raises InputError: a disk is behind nothing or of unknown rates, or a size has unknown or too many tokens."""
    if disks and not host_memory:
        raise InputError("--disk needs --host-memory: the disk is behind it")
    for name, model in models.items() if host_memory else ():
        if model.kv_bytes_per_token is None:
            raise InputError(f"--host-memory needs kv_bytes_per_token in the file of {name}")
        if disks and (model.disk_read_token_s is None or model.disk_write_token_s is None):
            of = f"in the file of {name}" if name != REFERENCE else "in a file of --replica"
            raise InputError(f"--disk needs disk_read_token_s and disk_write_token_s {of}")
        for flag, sizes, most in (
            ("--host-memory", host_memory, MOST_HOST_TOKENS),
            ("--disk", disks, MOST_DISK_TOKENS),
        ):
            if max(sizes, default=0) // model.kv_bytes_per_token > most:
                most *= model.kv_bytes_per_token
                raise InputError(f"{flag} must be at most {most} bytes for {name}, not {max(sizes)}")


def _prefill_sets(flags: argparse.Namespace, model: ReplicaModel, name: str) -> list[PrefillSet]:
    """Raises InputError: the flags contradict each other, or say too little."""
    if flags.disaggregate and flags.routing != "gateway":
        raise InputError("--disaggregate needs --routing gateway")
    if flags.transfer_rate is not None and not flags.disaggregate:
        raise InputError("--transfer-rate needs --disaggregate")
    return [PrefillSet(mode, 1, transfer_rate(flags, model, name)) for mode in dict.fromkeys(flags.disaggregate)]


_MEANING = {
    TTFT: "prompts fill the steps, so requests wait for their first token",
    TPOT: "steps get too long, so output tokens come too slowly",
    KV_CACHE: "the KV cache is full, so requests wait or are preempted",
    SLOTS: "all slots are taken, so requests wait",
}
_WIDTH = 24


def plan_text(plan: Plan, targets: RequestTargets) -> str:
    traffic = plan.traffic
    prefill = f" + {targets.prefill_factor:g} x its prefill" if targets.prefill_factor is not None else ""
    lines = [
        f"{traffic.requests:,} requests in {_duration(traffic.seconds)}: {traffic.requests_per_second:.1f} a second on "
        f"average, {traffic.peak_requests_per_second:.1f} in the busiest minute,",
        f"of {traffic.prompt_tokens:,.0f} prompt and {traffic.output_tokens:,.0f} output tokens on average.",
        f"Targets: first token within {_ms(targets.ttft)}{prefill} ({_ms(targets.long_ttft)} for prompts over "
        f"{targets.long_prompt:,} tokens), {_ms(targets.tpot)} per output token.",
        f"{_percent(plan.attainment)} of the requests must keep both.",
    ]
    for each in plan.replicas:
        lines += ["", each.name, *_replica(each, plan.attainment)]
    if len(plan.replicas) > 1:
        lines += ["", *_conclusion(plan)]
    return "\n".join(lines)


def _replica(each: ReplicaPlan, attainment: float) -> list[str]:
    seqs, tokens = each.limits
    lines = [_line("limits", f"max_num_seqs {seqs}, max_num_batched_tokens {tokens}")]
    if each.peak_replicas is None:
        return [*lines, _line("replicas", "no number is enough: one request alone misses the targets or does not fit")]
    lines += [
        _line("one replica carries", f"{each.requests_per_second:.1f} requests a second of the busiest minute"),
        _line("by the capacity model", f"{each.mean_replicas} on average, {each.peak_replicas} in the busiest minute"),
    ]
    checked = each.checked
    if checked is None:
        return [
            *lines,
            _line("simulated", f"no number that was tried keeps {_percent(attainment)} of the requests in target"),
            *_apart(each, attainment),
        ]
    less = "" if checked.one_less is None else f"; {_keep(checked.replicas - 1)} {checked.one_less:.2%}"
    lines.append(_line("simulated", f"{_keep(checked.replicas)} {checked.attainment:.2%} in target{less}"))
    if each.cost is not None:
        cost = each.cost
        lines.append(
            _line(
                "cost",
                f"{cost.per_hour:,.2f} an hour ({cost.per_replica_hour:g} a replica); "
                f"{cost.per_million_output_tokens:.3g} per million output tokens, "
                f"{cost.per_million_tokens:.3g} per million tokens in and out",
            )
        )
    first = first_to_break(each.breaking)
    factors = ", ".join(f"{name} {_factor(each.breaking[name])}" for name in each.breaking)
    lines += [
        _line("room", f"by the capacity model, in times the busiest minute: {factors}"),
        _line("breaks first", f"{first}: {_MEANING[first]}"),
        _line(
            "at twice the load",
            f"{_keep(checked.replicas)} {checked.twice_attainment:.2%}: "
            f"{checked.twice_missed_ttft:.2%} of the requests miss TTFT, {checked.twice_missed_tpot:.2%} TPOT; "
            f"needed are {each.twice_replicas} by the capacity model",
        ),
    ]
    if checked.host_memory:
        lines.append(_line("host memory", f"none: {_served(checked.served, checked.replicas)}"))
    for memory in checked.host_memory:
        fewest = (
            f"no number that was tried keeps {_percent(attainment)}"
            if memory.replicas is None
            else f"{_keep(memory.replicas)} {_percent(attainment)}"
        )
        disk = f" and a disk of {_size(memory.disk_size, memory.disk_tokens)}" if memory.disk_size else ""
        brings = f"{_served(memory.served, checked.replicas)}; {fewest}"
        lines.append(_line("", f"{_size(memory.size, memory.tokens)}{disk}: {brings}"))
    return lines + _apart(each, attainment)


def _apart(each: ReplicaPlan, attainment: float) -> list[str]:
    lines = []
    for one in each.apart:
        verdict = apart_verdict(one, attainment)
        lines.append(_line(f"apart, {one.mode}", f"{'pays' if one.pays else 'does not pay'}: {verdict}"))
        lines += [_line("", _sets(sets)) for pair in one.pairs for sets in (pair.one, pair.two)]
    return lines


def apart_verdict(one: Comparison, attainment: float) -> str:
    """Returns the reason why two sets pay or not."""
    if one.fewest == 1:
        return "one replica is enough, and cannot be split"
    if not one.pairs:
        return "one replica cannot be split"
    moved = [pair for pair in one.pairs if pair.two.handed_over]
    if not moved:
        return "no request is worth handing over"
    pair = next((pair for pair in reversed(moved) if pair.pays), moved[-1])
    if pair.pays and pair.replicas == one.needed != one.fewest:
        alone = "no number that was tried does as one set" if one.fewest is None else f"one set needs {one.fewest}"
        return f"{_keep(pair.replicas)} {_percent(attainment)} of the requests in target with each seed, {alone}"
    none = f"; no split that was tried keeps {_percent(attainment)}" if one.needed is one.fewest is None else ""
    return (
        f"with {pair.replicas} replicas {_shares(pair.two)} of the requests are in target, "
        f"{_shares(pair.one)} as one set{_too_little(pair)}{none}"
    )


def _too_little(pair: Pair) -> str:
    if pair.pays or pair.two.highest < pair.one.lowest:
        return ""
    return ": one request more" if pair.two.lowest > pair.one.highest else f": no more than the noise of {SEEDS} seeds"


def _sets(sets: Sets) -> str:
    answer = f"{sets.answer} ({_limits(sets.limits)})"
    first = f"one set of {answer}"
    if sets.prefill_limits is not None:
        first = f"{sets.prefill} ({_limits(sets.prefill_limits)}) for prompts and {answer}"
    times = (
        ""
        if sets.ttft_p95 is None or sets.tpot_p95 is None
        else f", TTFT p95 {sets.ttft_p95:.3f} s, TPOT p95 {1e3 * sets.tpot_p95:.1f} ms"
    )
    moved = f", {sets.handed_over:.1%} handed over" if sets.prefill else ""
    return f"{first}: {_shares(sets)} in target{times}{moved}"


def _limits(limits: tuple[int, int]) -> str:
    return "{}/{}".format(*limits)


def _shares(sets: Sets) -> str:
    low, high = f"{sets.lowest:.2%}", f"{sets.highest:.2%}"
    return low if low == high else f"{low} to {high}"


def _size(size: int, tokens: int) -> str:
    return f"{size / 2**30:,.4g} GiB, {tokens:,} tokens"


def _served(served: Served, replicas: int) -> str:
    with_these = f"with {replicas} replica{'s' if replicas > 1 else ''}"
    first = "" if served.ttft_p50 is None else f", TTFT p50 {served.ttft_p50:.3f} s, p95 {served.ttft_p95:.3f} s"
    return f"{served.hit_rate:.1%} of prompt tokens are found{first} {with_these}"


def _conclusion(plan: Plan) -> list[str]:
    able = [each for each in plan.replicas if each.checked is not None]
    if not able:
        return ["None of them keeps the targets."]
    priced = [(each.cost.per_hour, each.name) for each in able if each.cost is not None]
    if len(priced) == len(able):
        per_hour, name = min(priced)
        return [f"Cheapest: {name} at {per_hour:,.2f} an hour."]
    counts = ", ".join(f"{each.name} {each.checked.replicas}" for each in able if each.checked is not None)
    return [f"Replicas needed: {counts}. With a price of each the cheapest is named."]


def _line(label: str, text: str) -> str:
    return f"  {label:<{_WIDTH}}{text}"


def _factor(value: float) -> str:
    return f"over {MOST:g}" if math.isinf(value) else f"{value:.2f}"


def _keep(count: int) -> str:
    return f"{count} replicas keep" if count > 1 else "1 replica keeps"


def _percent(share: float) -> str:
    return f"{100 * share:g}%"


def _ms(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{1e3 * seconds:g} ms"


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"

"""`python -m tools.bench.gateway`: overhead of the gateway, and routing on real replicas beside its peers."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

from inflight_settings.flag_types import number
from tools.bench.gateway import apart, isolation, overhead, routing
from tools.bench.gateway.conversations import turns
from tools.bench.gateway.overhead import Overhead
from tools.bench.gateway.routing import POLICIES, Routed
from tools.measure.report import cpu_model, say, table, write_json
from tools.standin.stream import EVENT_SECONDS

DESCRIPTION = """overhead: the gateway (Envoy, relay, picker) beside a direct connection. The engine is a stand-in that
answers at once, so nearly all of the latency is that of the path. Clients, stand-in and gateway share the machine; the
CPU time of each process for a request or a streamed token is what a dedicated core would spend. With --beside, the
gateway of another version too, in turns, and the ratios. With several gateway pods, requests enter at the pod that owns
their service, and then at another one (`other pod`). Two minutes for each.

routing: conversations of a Mooncake trace, scaled, on real replicas of the built-in model: time to first token and
prefix hits of the gateway with one pod, of all its pods with a new connection for each request, of these with the KV
cache events of the engines, of least requests, of round robin and of a plain Service, in one run. About three minutes
for each; on a quiet machine. --policies gateway-pods,gateway-pods-exact compares the two indexes of prefixes.

isolation: the latency of a tenant with a modest load on a real engine, alone and beside one that floods another pod of
the gateway, by set-up. About 30 minutes; on a quiet machine.

apart: requests with long and with short prompts of Azure's conversation trace on four real replicas, as one set and as
a set for prompts and one for answers (spec.disaggregation), in turns. A quarter of an hour; on a quiet machine."""

PARTS = ("overhead", "routing", "isolation", "apart")

VOCAB_SIZE = 49_152
"""Size of the built-in model's vocabulary."""


def main() -> int:
    """Measure, print tables; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.gateway",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--pods", type=int, default=2, help="gateway pods (default 2)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run of overhead (default 5)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each path, in turns (default 3)")
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="FOLDER",
        help="another version of this repository, whose gateway overhead measures in turns with this one",
    )
    parser.add_argument("--streams", type=int, default=2000, help="open streams for the memory (default 2000)")
    parser.add_argument("--replicas", type=int, default=4, help="engines of routing (default 4)")
    parser.add_argument("--load-seconds", type=float, default=160, help="length of routing's load (default 160)")
    parser.add_argument(
        "--replica-cores",
        type=float,
        default=0.4,
        help="CPU time that each engine of routing gets, as if on a machine of its own; needs root; 0: no bound"
        " (default 0.4)",
    )
    parser.add_argument("--policies", default=",".join(POLICIES), metavar="A,B", help="of routing (default all)")
    parser.add_argument("--isolation-seconds", type=float, default=120, help="of each run of isolation (default 120)")
    parser.add_argument(
        "--arms", default=",".join(isolation.ARMS), metavar="A,B", help="set-ups of isolation (default all)"
    )
    parser.add_argument(
        "--apart-rates",
        type=number(float, 0),
        nargs=len(apart.SHAPES),
        default=apart.RATES,
        metavar="R",
        help=f"requests a second of apart, with {' and '.join(each.name for each in apart.SHAPES)} prompts; 0: none"
        f" (default {' '.join(f'{rate:g}' for rate in apart.RATES)})",
    )
    parser.add_argument("--apart-rounds", type=number(int, 1), default=2, help="of apart (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    parts, policies, arms = arguments.parts or PARTS, arguments.policies.split(","), arguments.arms.split(",")
    for given, known in ((parts, PARTS), (policies, POLICIES), (arms, isolation.ARMS)):
        if unknown := [each for each in given if each not in known]:
            parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    found: dict[str, object] = {}
    print(cpu_model(), flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-gateway-") as name:
        folder = Path(name)
        try:
            if "overhead" in parts:
                measured = overhead.measure(
                    folder,
                    seconds=arguments.seconds,
                    rounds=arguments.rounds,
                    streams=arguments.streams,
                    pods=arguments.pods,
                    beside=arguments.beside,
                )
                found["overhead"] = {name: asdict(each) for name, each in measured.items()}
                print("\n".join(overhead_tables(measured)), flush=True)
            if "routing" in parts:
                load = turns(arguments.load_seconds, VOCAB_SIZE)
                (folder / "routing").mkdir()
                routed = routing.measure(
                    *(folder / "routing", load, arguments.replicas, policies, say),
                    pods=arguments.pods,
                    cores=arguments.replica_cores,
                )
                found["routing"] = [asdict(row) for row in routed]
                print("\n".join(routing_table(routed)), flush=True)
            if "isolation" in parts:
                isolated = isolation.measure(
                    folder / "isolation", arguments.isolation_seconds, arms, say, arguments.pods
                )
                found["isolation"] = [asdict(row) for row in isolated]
                print("\n".join(isolation.table(isolated)), flush=True)
            if "apart" in parts:
                cores, rounds = arguments.replica_cores, arguments.apart_rounds
                rows = apart.measure(
                    folder / "apart", apart.loads(arguments.apart_rates), say, cores=cores, rounds=rounds
                )
                found["apart"] = [asdict(row) for row in rows]
                print("\n".join(apart.table(rows)), flush=True)
        except RuntimeError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    write_json(arguments.json, found)
    return 0


def overhead_tables(found: Mapping[str, Overhead]) -> list[str]:
    """Lines for a terminal: each gateway, and the ratios of each two."""
    lines = []
    for name, each in found.items():
        lines += ["", f"gateway: {name}", *overhead_table(each)]
    for pair in combinations(found.items(), 2):
        lines += ratio_table(*pair)
    return lines


def overhead_table(found: Overhead) -> list[str]:
    rows = [["path", "connections", "p50 ms", "p99 ms", "requests/s", "requests/s a core", "CPU of a request, ms"]]
    for row in found.latencies:
        shown = [f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}", f"{row.rps:.0f}"]
        shown += [f"{row.per_cpu_second:.0f}", _parts(row.cpu_ms, 3)] if row.cpu_ms else ["", ""]
        rows.append([row.path, str(row.connections), *shown])
    lines = table(rows, "<>")
    of_token, sent = sum(found.tokens.cpu_us.values()), found.tokens.sent
    lines += [
        f"CPU for a streamed token: {of_token:.1f} us ({_parts(found.tokens.cpu_us, 1)}):"
        f" {found.tokens.per_cpu_second:,.0f} tokens/s a core; {found.tokens.delivered:,.0f} of {sent:,.0f} tokens/s"
        " were delivered",
    ]
    picks = ", ".join(f"{us:.0f} us of {replicas} replicas" for replicas, us in found.pick_us.items())
    lines.append(f"CPU for a pick: {picks}")
    alone, beside = found.gap_ms
    lines.append(
        f"Longest gap in {overhead.GAP_STREAMS} streams of an event every {1e3 * overhead.TOKEN_SECONDS:.0f} ms:"
        f" {alone:.0f} ms alone, {beside:.0f} ms beside {overhead.PROMPTS_PER_S:.0f} prompts of"
        f" {overhead.LONG_PROMPT_TOKENS:,} tokens a second; without a gateway {found.direct_gap_ms[0]:.0f} and"
        f" {found.direct_gap_ms[1]:.0f} ms"
    )
    before, added = sum(found.memory_mib.values()), sum(found.stream_memory_mib.values())
    lines.append(
        f"Memory: {before:.0f} MiB idle; {found.streams} open streams add {added:.0f} MiB"
        f" ({_parts(found.stream_memory_mib, 0)}); longest gap between events then {found.longest_gap_s:.2f} s, where"
        f" they come every {EVENT_SECONDS} s"
    )
    return lines


def _sum(of: Mapping[str, float]) -> float:
    return sum(of.values())


def _parts(of: Mapping[str, float], digits: int) -> str:
    return ", ".join(f"{name} {each:.{digits}f}" for name, each in of.items())


def ratio_table(ours: tuple[str, Overhead], other: tuple[str, Overhead]) -> list[str]:
    """Lines for a terminal: above 1 where the first is better."""
    one, two = ours[1], other[1]
    rows = [
        ("tokens/s a core", one.tokens.per_cpu_second, two.tokens.per_cpu_second, True),
        *(
            (f"requests/s a core, {connections} at once", rps, two.requests_per_cpu_second[connections], True)
            for connections, rps in one.requests_per_cpu_second.items()
        ),
        *((f"pick of {count}, us", us, two.pick_us[count], False) for count, us in one.pick_us.items()),
        ("longest gap beside long prompts, ms", one.gap_ms[1], two.gap_ms[1], False),
        ("memory, MiB", _sum(one.memory_mib), _sum(two.memory_mib), False),
        (f"memory of {one.streams} streams, MiB", _sum(one.stream_memory_mib), _sum(two.stream_memory_mib), False),
    ]
    shown = [["", ours[0], other[0], "ratio"]]
    for name, first, second, more_is_better in rows:
        ratio = first / second if more_is_better else second / first
        shown.append([name, f"{first:,.0f}", f"{second:,.0f}", f"{ratio:.2f}x"])
    return ["", *table(shown, "<>")]


def routing_table(found: Sequence[Routed]) -> list[str]:
    """Lines for a terminal. The last columns are p95 over the gateway's, above 1 where the gateway is faster, and
    prefix hits over the gateway's."""
    ours = next((row for row in found if row.policy == routing.OURS), None)
    rows = [["policy", "requests", "TTFT p50 s", "p95 s", "prefix hits", "busiest"]]
    rows[0] += ["p95 / gateway", "hits / gateway"] if ours else []
    for row in found:
        figures = [f"{row.ttft_p50:.2f}", f"{row.ttft_p95:.2f}", f"{row.hit_rate:.1%}", f"{row.busiest:.1%}"]
        if ours is not None:
            figures += [f"{row.ttft_p95 / ours.ttft_p95:.2f}x", f"{row.hit_rate / ours.hit_rate:.3f}x"]
        rows.append([row.policy, str(row.requests), *figures])
    return ["", *table(rows, "<>")]


if __name__ == "__main__":
    sys.exit(main())

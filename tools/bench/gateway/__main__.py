"""`python -m tools.bench.gateway`: overhead of the gateway, and routing on real replicas beside its peers."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

from tools.bench.gateway import isolation, overhead, routing, simulated
from tools.bench.gateway.conversations import turns
from tools.bench.gateway.overhead import Overhead
from tools.bench.gateway.routing import POLICIES, Routed
from tools.bench.gateway.simulated import Simulated
from tools.measure.report import cpu_model, say, write_json
from tools.standin.stream import EVENT_SECONDS

DESCRIPTION = """overhead: the gateway (Envoy, relay, picker) beside a direct connection. The engine is a stand-in that
answers at once, so nearly all of the latency is that of the path. Clients, stand-in and gateway share the machine; the
CPU time of each process for a request or a streamed token is what a dedicated core would spend. With --beside, the
gateway of another version too, in turns, and the ratios. With several gateway pods, requests enter at the pod that owns
their service, and then at another one (`other pod`). Two minutes for each.

routing: conversations of a Mooncake trace, scaled, on real replicas of the built-in model: time to first token and
prefix hits of the gateway with one pod, of all its pods with a new connection for each request, of least requests, of
round robin and of a plain Service, in one run; then the same in the fleet simulator, with the cost model that the
replicas fitted. About three minutes for each; on a quiet machine.

isolation: the latency of a tenant with a modest load on a real engine, alone and beside one that floods another pod of
the gateway, by set-up. About 30 minutes; on a quiet machine."""

PARTS = ("overhead", "routing", "isolation")

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
                found["routing"] = [asdict(row) for row in routed.rows]
                print("\n".join(routing_table(routed.rows)), flush=True)
                replica = simulated.replica_model(routed.samples)
                again = simulated.simulate(load, replica, arguments.replicas, routing.LIMITS, routing.TTFT_S)
                found["simulated"] = {"replica": asdict(replica), "rows": [asdict(row) for row in again]}
                print("\n".join(agreement_table(routed.rows, again)), flush=True)
            if "isolation" in parts:
                isolated = isolation.measure(
                    folder / "isolation", arguments.isolation_seconds, arms, say, arguments.pods
                )
                found["isolation"] = [asdict(row) for row in isolated]
                print("\n".join(isolation.table(isolated)), flush=True)
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
    lines = [f"{'path':<10} {'connections':>11} {'p50 ms':>8} {'p99 ms':>8} {'requests/s':>11}"]
    for row in found.latencies:
        lines.append(f"{row.path:<10} {row.connections:>11} {row.p50_ms:>8.2f} {row.p99_ms:>8.2f} {row.rps:>11.0f}")
    total, of_token, sent = sum(found.cpu_ms.values()), sum(found.tokens.cpu_us.values()), found.tokens.sent
    lines += [
        f"CPU for a streamed token: {of_token:.1f} us ({_parts(found.tokens.cpu_us, 1)}):"
        f" {found.tokens.per_cpu_second:,.0f} tokens/s a core; {found.tokens.delivered:,.0f} of {sent:,.0f} tokens/s"
        " were delivered",
        f"CPU for a request: {total:.2f} ms ({_parts(found.cpu_ms, 2)}): {found.requests_per_cpu_second:.0f} requests/s"
        " a core",
    ]
    picks = ", ".join(f"{us:.0f} us of {replicas} replicas" for replicas, us in found.pick_us.items())
    lines.append(f"CPU for a pick: {picks}")
    alone, beside = found.gap_ms
    lines.append(
        f"Longest gap in {overhead.GAP_STREAMS} streams of an event every {1e3 * overhead.TOKEN_SECONDS:.0f} ms:"
        f" {alone:.0f} ms alone, {beside:.0f} ms beside {overhead.PROMPTS_PER_S:.0f} prompts of"
        f" {overhead.LONG_PROMPT_TOKENS:,} tokens a second"
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
        ("requests/s a core", one.requests_per_cpu_second, two.requests_per_cpu_second, True),
        *((f"pick of {count}, us", us, two.pick_us[count], False) for count, us in one.pick_us.items()),
        ("longest gap beside long prompts, ms", one.gap_ms[1], two.gap_ms[1], False),
        ("memory, MiB", _sum(one.memory_mib), _sum(two.memory_mib), False),
        (f"memory of {one.streams} streams, MiB", _sum(one.stream_memory_mib), _sum(two.stream_memory_mib), False),
    ]
    lines = ["", f"{'':<36} {ours[0]:>12} {other[0]:>12} {'ratio':>7}"]
    for name, first, second, more_is_better in rows:
        ratio = first / second if more_is_better else second / first
        lines.append(f"{name:<36} {first:>12,.0f} {second:>12,.0f} {ratio:>6.2f}x")
    return lines


def routing_table(found: Sequence[Routed]) -> list[str]:
    """Lines for a terminal. The last columns are p95 over the gateway's, above 1 where the gateway is faster, and
    prefix hits over the gateway's."""
    ours = next((row for row in found if row.policy == routing.OURS), None)
    lines = ["", f"{'policy':<15} {'requests':>8} {'TTFT p50 s':>11} {'p95 s':>7} {'prefix hits':>12} {'busiest':>8}"]
    if ours is not None:
        lines[1] += f" {'p95 / gateway':>14} {'hits / gateway':>15}"
    for row in found:
        line = f"{row.policy:<15} {row.requests:>8} {row.ttft_p50:>11.2f} {row.ttft_p95:>7.2f}"
        line += f" {row.hit_rate:>12.1%} {row.busiest:>8.1%}"
        if ours is not None:
            line += f" {row.ttft_p95 / ours.ttft_p95:>13.2f}x {row.hit_rate / ours.hit_rate:>14.3f}x"
        lines.append(line)
    return lines


def agreement_table(found: Sequence[Routed], again: Sequence[Simulated]) -> list[str]:
    """Lines for a terminal: what was measured beside what the simulator says."""
    rows = {row.policy: row for row in found}
    lines = ["", f"{'policy':<15} {'p95 s':>7} {'simulated (10 to 90% of seeds)':>31} {'hits':>7} {'simulated':>10}"]
    for row in again:
        if (real := rows.get(row.policy)) is not None:
            spread = f"{row.ttft_p95:.2f} ({row.ttft_p95_low:.2f} to {row.ttft_p95_high:.2f})"
            lines.append(
                f"{row.policy:<15} {real.ttft_p95:>7.2f} {spread:>31} {real.hit_rate:>7.1%} {row.hit_rate:>10.1%}"
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())

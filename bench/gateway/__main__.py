"""`python -m bench.gateway`: what the gateway costs beside a direct connection."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from bench.gateway.overhead import Overhead, measure
from bench.machine import cpu_model

DESCRIPTION = """Overhead of the gateway (Envoy, relay, picker) beside a direct connection, on this machine.

The engine is a stand-in that answers at once, so nearly all of the latency is that of the path. Clients, stand-in and
gateway share the machine; the CPU time of each process for a request is what a core of its own would spend."""


def main() -> int:
    """Measure, print a table; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gateway", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run (default 5)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each path, in turns (default 3)")
    parser.add_argument("--streams", type=int, default=2000, help="open streams for the memory (default 2000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-gateway-") as folder:
        try:
            found = measure(Path(folder), seconds=arguments.seconds, rounds=arguments.rounds, streams=arguments.streams)
        except RuntimeError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print("\n".join(table(found)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found.as_json(), indent=2) + "\n")
    return 0


def table(found: Overhead) -> list[str]:
    """Lines for a terminal."""
    lines = [f"{cpu_model()}; prompts of 2,000 characters", ""]
    lines.append(f"{'path':<10} {'connections':>11} {'p50 ms':>8} {'p99 ms':>8} {'requests/s':>11}")
    for row in found.latencies:
        lines.append(f"{row.path:<10} {row.connections:>11} {row.p50_ms:>8.2f} {row.p99_ms:>8.2f} {row.rps:>11.0f}")
    total = sum(found.cpu_ms.values())
    parts = ", ".join(f"{name} {each:.2f}" for name, each in found.cpu_ms.items())
    lines += ["", f"CPU for a request: {total:.2f} ms ({parts}): {1000 / total:.0f} requests/s a core"]
    before, added = sum(found.memory_mib.values()), sum(found.stream_memory_mib.values())
    parts = ", ".join(f"{name} {each:.0f}" for name, each in found.stream_memory_mib.items())
    lines.append(f"Memory: {before:.0f} MiB idle; {found.streams} open streams add {added:.0f} MiB ({parts})")
    lines.append(f"Longest gap between events of a stream then: {found.longest_gap_s:.2f} s, events come every 0.5 s")
    return lines


if __name__ == "__main__":
    sys.exit(main())

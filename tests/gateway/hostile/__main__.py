"""Malformed and hostile requests against a whole gateway: `python -m tests.gateway.hostile --requests 100000`. With
`--flood SECONDS` attacks beside one client with an API key, whose p99 must stay below twice its value alone.

Envoy, relay and picker are real processes, engines are stand-ins that check what reaches them. Exit code 1: a rule was
broken; the report names the first case of each.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.gateway.hostile import beside
from tests.gateway.hostile.attacks import ATTACKS
from tests.gateway.hostile.gateway_run import Report, hostile_gateway

MAX_GROWTH_MIB = 20.0
"""Most growth of a program between the second and the last tenth: 10^5 requests that leave 260 bytes each would show.
The picker remembers requests for 30 s, which is 15 MiB at 500 requests/s."""

MAX_GROWTH_FILES = 100
"""Most more descriptors: idle connections between the programs come and go with the load."""


def leaks(report: Report) -> list[str]:
    found = []
    for program in report.used[-1]:
        growth = report.growth(program)
        if growth.memory_mib > MAX_GROWTH_MIB or growth.files > MAX_GROWTH_FILES:
            found.append(f"{program} grew by {growth.memory_mib:.1f} MiB and {growth.files} descriptors")
    return found


async def run(count: int, seed: int, clients: int, folder: Path) -> int:
    async with hostile_gateway(folder) as hostile:
        report: Report = await hostile.run(count, seed, clients)
    for kind, number in report.counts.most_common():
        statuses = {status: times for (name, status), times in sorted(report.statuses.items()) if name == kind}
        print(f"{kind:16} {number:7,}  {statuses}")
    for program in report.used[-1]:
        used = [part[program] for part in report.used]
        memory, files = ([f"{one.memory_mib:.1f}" for one in used], [one.files for one in used])
        print(f"{program:8} MiB {' '.join(memory)}; descriptors {files}")
    print(f"{sum(report.counts.values()):,} requests in {report.seconds:.0f} s, {len(report.faults)} kinds of faults")
    # Last, so that they are seen where only the end of the output is kept.
    for fault, number in report.fault_counts.most_common():
        print(f"FAULT x{number}: {fault}\n      first: {report.faults[fault] or 'no single request'}")
    for leak in leaks(report):
        print(f"LEAK: {leak}")
    return 1 if report.faults or leaks(report) else 0


MAX_RATIO = 2.0
"""Most of the keyed client's p99 beside the attacks over that alone."""

LEAST_SENT = 0.9
"""Share of the attacks that must have been sent: their clients share the machine with the gateway."""


async def flood(seconds: float, rate: float, kinds: list[str], folder: Path) -> int:
    found = await beside.run(folder, alone_s=seconds / 2, flood_s=seconds, rate=rate, kinds=kinds)
    for kind in kinds:
        print(f"{kind:16} { ({result: count for (name, result), count in sorted(found.got.items()) if name == kind}) }")
        if found.sent(kind) < LEAST_SENT * rate * seconds:
            found.faults[f"{kind}: {found.sent(kind)} attacks of {rate * seconds:.0f} were sent, too few"] += 1
    alone, with_attacks = found.alone.p99_ms, found.beside.p99_ms
    print(
        f"p99 of {len(found.alone.latencies_s):,} requests alone {alone:.1f} ms, of"
        f" {len(found.beside.latencies_s):,} beside {rate:g} attacks of each kind a second {with_attacks:.1f} ms:"
        f" {with_attacks / alone:.2f} times"
    )
    for name, span in (("alone", found.alone), ("beside the attacks", found.beside)):
        shares = (
            (program, 100 / span.seconds * used.ran, 100 / span.seconds * used.waited)
            for program, used in span.used.items()
        )
        text = ", ".join(f"{program} {ran:.0f}% ({waited:.0f}%)" for program, ran, waited in shares)
        print(f"time on a core {name} (and ready, waiting for one): {text}")
    print("most MiB:", ", ".join(f"{name} {mib:.0f}" for name, mib in found.most_mib.items()))
    for fault, number in found.faults.most_common():
        print(f"FAULT x{number}: {fault}")
    return 1 if found.faults or with_attacks > MAX_RATIO * alone else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gateway.hostile", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=48, help="at the same time (default: %(default)s)")
    parser.add_argument("--flood", type=float, metavar="SECONDS", help="attacks beside a client, for so long")
    parser.add_argument("--rate", type=float, default=50, help="attacks of each kind a second (default: %(default)s)")
    parser.add_argument("--kinds", default=",".join(ATTACKS), metavar="A,B", help="of attacks (default: all)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.flood:
            return asyncio.run(flood(options.flood, options.rate, options.kinds.split(","), Path(folder)))
        return asyncio.run(run(options.requests, options.seed, options.clients, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())

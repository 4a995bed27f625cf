"""Malformed and hostile requests against a whole gateway: `python -m tests.gateway.hostile --requests 100000`.

Envoy, relay and picker are real processes, engines are stand-ins that check what reaches them. Exit code 1: a rule was
broken; the report names the first case of each.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gateway.hostile", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=48, help="at the same time (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(options.requests, options.seed, options.clients, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())

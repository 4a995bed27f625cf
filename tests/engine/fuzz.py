"""Random scheduler steps against the model of the rules: `python -m tests.engine.fuzz --steps 1000000`.

Draws one small configuration after the other, each with a load of its own, and stops at the first broken rule.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from random import Random

from tests.engine.scheduling.workload import Workload, described

SHORTEST, LONGEST = 300, 3000
PROGRESS_SECONDS = 5.0


class Fuzz:
    """Configurations with the seeds `seed`, `seed + 1`, ..., until `steps` or `seconds` are over.

    Attributes:
        counts: what happened, as in `Workload.counts`.
        workload: the present one.
        seed, length: its seed, and how many steps it gets before no more requests come.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed - 1
        self.length = 0
        self.counts: Counter[str] = Counter()
        self.workload: Workload | None = None

    def run(self, steps: int, seconds: float) -> None:
        """Raises AssertionError where a rule is broken."""
        end = time.monotonic() + seconds
        told = time.monotonic()
        while (left := steps - self.counts["steps"]) > 0 and time.monotonic() < end:
            self.seed += 1
            workload = self.workload = Workload(self.seed)
            self.length = min(left, Random(self.seed).randint(SHORTEST, LONGEST))
            for _ in range(self.length):
                workload.step()
            workload.finish()
            self.counts += workload.counts
            self.counts["configurations"] += 1
            if time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                print(summary(self.counts), flush=True)


def summary(counts: Counter[str]) -> str:
    cancels = sum(count for name, count in counts.items() if name.startswith("cancelled_"))
    return (
        f"{counts['steps']:,} steps, {counts['configurations']} configurations: {counts['starts']:,} admissions,"
        f" {counts['preemptions']:,} preemptions,"
        f" {counts['stored']:,} blocks stored, {counts['loaded']:,} loaded,"
        f" {counts['from_disk']:,} from disk,"
        f" {counts['hit_tokens']:,} prefix hit tokens,"
        f" {cancels:,} cancels"
    )


def report(fuzz: Fuzz) -> None:
    """Say on standard error what broke, in which configuration, and how to see it again."""
    workload = fuzz.workload
    assert workload is not None
    print("\nlast events:", file=sys.stderr)
    for event in workload.events:
        print("  " + described(event), file=sys.stderr)
    print("  last plan: " + described(workload.driver.plan), file=sys.stderr)
    print(f"configuration: {workload.fields}", file=sys.stderr)
    print(f"live limits: {workload.driver.rules.limits}", file=sys.stderr)
    traceback.print_exc(limit=-3)
    print(
        f"broken after {workload.counts['steps']} steps of seed {fuzz.seed}. Again:"
        f" python -m tests.engine.fuzz --seed {fuzz.seed} --steps {fuzz.length}",
        file=sys.stderr,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000, help="scheduler steps (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long (default: never)")
    parser.add_argument("--seed", type=int, default=1, help="of the first configuration (default: %(default)s)")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    fuzz = Fuzz(options.seed)
    try:
        fuzz.run(options.steps, options.seconds)
    except Exception:
        report(fuzz)
        return 1
    print(f"{summary(fuzz.counts)}. 0 violations in {time.monotonic() - started:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

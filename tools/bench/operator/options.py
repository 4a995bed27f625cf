"""The command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from inflight_settings.flag_types import number

PHASES = ("rest", "load", "hung", "leader")
"""Phases of a run without --phases."""
MORE_PHASES = ("burst", "create", "rollout", "upgrade", "classes")

_above_zero = number(float, 0.001)

_PHASES = f"these alone, always in the order below (default: {' '.join(PHASES)})"

_EPILOG = """\
phases:
  rest    steady traffic: CPU, memory, rounds, scrapes and API writes of an operator with nothing to change
  load    queues jump on one service in ten: seconds from the jump until Deployment.spec.replicas is written
  hung    the same while one pod in ten accepts connections and never answers
  leader  a second operator stands by and the leader is killed with SIGKILL: seconds until the second one acts

by name alone:
  burst    queues jump on one service in ten, all within 30 s: as load
  create   one new service for each ten, all within 30 s: seconds until its Deployment is created
  rollout  the first service's pods, which start up in 10 s, are replaced 10% at a time, both ways: waves of start-up,
           and the fewest Ready pods that a watch saw
  upgrade  the engine image changes, and no node has room for one service's additional pod: the others are done, one
           service moves at a time, and that one is Stuck
  classes  a second installation with as many services of another spec.className beside the first: API writes of each
           operator to services of the other, and at rest

The exit code is 1 where a goal is missed: a bound of leader, rollout, upgrade or classes; in the other phases that of
the operator's CPU, its peak memory, the p99 from a change to its write, changes without a write, or the time without a
renewal of the Lease. The goals are for up to 1000 services of 5 pods.

Everything runs in a network namespace of its own, which goes when the last process does. Root is not needed where
the kernel lets users have namespaces.
"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Exits with 2 on wrong usage, with 0 after --help. `pods` is the number of pods of all services."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.operator",
        description="Measure the operator with a real control plane and fake nodes, pods and engines.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    line = parser.add_argument
    line("--services", type=number(int, 1), default=1000, metavar="N", help="services (default: 1000)")
    line("--pods-per-service", type=number(int, 1), default=5, metavar="N", help="pods of each service (default: 5)")
    line("--phases", nargs="+", choices=(*PHASES, *MORE_PHASES), default=PHASES, help=_PHASES)
    line("--seconds", type=_above_zero, default=90.0, metavar="SECONDS", help="length of a phase (default: 90)")
    line("--interval", type=_above_zero, default=5.0, metavar="SECONDS", help="between scrapes of a pod (default: 5)")
    line("--json", type=Path, metavar="FILE", help="write the figures there as JSON")
    line("--state", type=Path, metavar="FOLDER", help="keep logs and data there; default: a temporary folder")
    options = parser.parse_args(argv)
    options.pods = options.services * options.pods_per_service
    return options

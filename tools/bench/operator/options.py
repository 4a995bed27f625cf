"""The command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inflight_settings.flag_types import number

PHASES = ("rest", "load", "hung", "leader")

_above_zero = number(float, 0.001)

_EPILOG = """\
phases:
  rest    steady traffic: CPU, memory, rounds, scrapes and API writes of an operator with nothing to change
  load    queues jump on one service in ten: seconds from the jump until Deployment.spec.replicas is written
  hung    the same while one pod in ten accepts connections and never answers
  leader  a second operator stands by and the leader is killed with SIGKILL: seconds until the second one acts

Everything runs in a network namespace of its own, which goes when the last process does. Root is not needed where
the kernel lets users have namespaces.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the benchmark.

    Attributes:
        services, pods_per_service: size of the fleet.
        phases: in the order in which they run.
        seconds: length of a phase.
        interval: seconds between two scrapes of a pod.
        rate: services created per second.
        seed: of the choice of services that jump and of pods that hang.
        json: file for the figures; None writes none.
        state: folder to keep, with all logs; None takes a temporary one.
    """

    services: int
    pods_per_service: int
    phases: tuple[str, ...]
    seconds: float
    interval: float
    rate: float
    seed: int
    json: Path | None
    state: Path | None

    @property
    def pods(self) -> int:
        return self.services * self.pods_per_service


def parse(argv: Sequence[str] | None) -> Options:
    """Exits with 2 on wrong usage, with 0 after --help."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.operator",
        description="Measure the operator with a real control plane and fake nodes, pods and engines.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--services", type=number(int, 1), default=1000, metavar="N", help="services (default: 1000)")
    parser.add_argument(
        "--pods-per-service", type=number(int, 1), default=5, metavar="N", help="pods of each service (default: 5)"
    )
    parser.add_argument(
        "--phases",
        type=_phases,
        default=PHASES,
        metavar="LIST",
        help=f"some of {','.join(PHASES)}, separated by commas (default: all)",
    )
    parser.add_argument(
        "--seconds", type=_above_zero, default=90.0, metavar="SECONDS", help="length of a phase (default: 90)"
    )
    parser.add_argument(
        "--interval",
        type=_above_zero,
        default=5.0,
        metavar="SECONDS",
        help="between two scrapes of a pod (default: 5)",
    )
    parser.add_argument(
        "--rate", type=_above_zero, default=10.0, metavar="N", help="services created per second (default: 10)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the services and pods chosen at random (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as JSON")
    parser.add_argument(
        "--state", type=Path, metavar="FOLDER", help="keep logs and data there; default: a temporary folder"
    )
    return Options(**vars(parser.parse_args(argv)))


def _phases(text: str) -> tuple[str, ...]:
    chosen = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in chosen if name not in PHASES]
    if unknown or len(set(chosen)) != len(chosen):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(PHASES)}, each at most once")
    return tuple(name for name in PHASES if name in chosen)

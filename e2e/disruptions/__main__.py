"""`make e2e-disruptions`: disrupts a service under traffic in every way, and prints a table of lost requests."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from e2e.disruptions import table
from e2e.disruptions.phases import IN_MAKE_TEST, IN_MAKE_TEST_WITH_GATEWAY, PHASES
from e2e.disruptions.run import NotRestoredError, run_phase
from e2e.disruptions.stage import REPLICAS, Stage
from e2e.disruptions.verdict import ERROR_SECONDS, Outcome
from tools.localcluster import ClusterError
from tools.localcluster.progress import to_stdout
from tools.measure.report import write_json
from tools.signals import exit_code, exit_on_signals
from tools.testbed.install import install
from tools.testbed.namespaces import temporary_namespace
from tools.testbed.service import Service

NAMESPACE = "e2e-disruptions"

DESCRIPTION = f"""Disrupts a service of {REPLICAS} pods in the local cluster while clients send requests, one phase
after the other, and accounts for every request: half of them streaming, a new connection for each, a 503 with
Retry-After obeyed, each answer checked to be whole.

A phase holds when no request was lost. In the phases that kill or stop a pod, requests on that pod may fail, each with
an error and at most {ERROR_SECONDS:.0f} s after the kill. Where the whole pod is dead or hangs, requests that the
network still takes there are on that pod too. With --gateway the service is behind the gateway, and no phase may lose
a request of an engine's pod; requests on a gateway pod that is killed may fail as above.

Brings cluster and chart up where they are not, from the sources as they are. Each phase ends with the cluster as it
began; so does Ctrl-C. The service's namespace, {NAMESPACE}, is deleted at the end."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    phases = "\n".join(f"  {name:<22} {phase.about}" for name, phase in PHASES.items())
    line = argparse.ArgumentParser(
        prog="python -m e2e.disruptions",
        description=DESCRIPTION,
        epilog=f"phases:\n{phases}\n\n`make test` runs: {', '.join(IN_MAKE_TEST)};\nwith the gateway: "
        f"{', '.join(IN_MAKE_TEST_WITH_GATEWAY)}\n\n"
        "exit code: 0 every phase held, 1 one did not, 2 wrong usage\n\n"
        "example: python -m e2e.disruptions --phases pod-deleted,pod-killed --json outcome.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    line.add_argument("--phases", type=names, metavar="A,B", help="only these, in this order (default: all that fit)")
    line.add_argument("--gateway", action="store_true", help="put the service behind the gateway")
    line.add_argument("--seconds", type=float, default=20, help="least time of traffic in a phase (default 20)")
    line.add_argument("--json", type=Path, metavar="FILE", help="write all outcomes there, with every lost request")
    return line


def names(text: str) -> tuple[str, ...]:
    """Names of phases from a list with commas."""
    chosen = tuple(name.strip() for name in text.split(",") if name.strip())
    if unknown := [name for name in chosen if name not in PHASES]:
        raise argparse.ArgumentTypeError(f"no phase {', '.join(unknown)}; the phases are {', '.join(PHASES)}")
    return chosen


def chosen(options: argparse.Namespace) -> tuple[str, ...]:
    """The phases to run: those of `--phases`, else all that apply to the service."""
    fitting = tuple(name for name, phase in PHASES.items() if options.gateway or not phase.of_gateway)
    return fitting if options.phases is None else tuple(options.phases)


def run(options: argparse.Namespace) -> int:
    """Runs all chosen phases; their table is printed and written also when the run ends early. Exit code 0 if all
    held."""
    say = to_stdout()
    image = install(say)
    outcomes: list[Outcome] = []
    with temporary_namespace(NAMESPACE):
        stage = Stage(Service("chat", NAMESPACE), image, say, gateway=options.gateway)
        stage.settle()
        try:
            for name in chosen(options):
                outcomes.append(run_phase(PHASES[name], stage, options.seconds))
                say("  " + table.summary(outcomes[-1]))
        finally:
            print("\n" + table.text(outcomes), flush=True)
            write_json(options.json, [asdict(outcome) for outcome in outcomes])
    return 1 if any(outcome.problems for outcome in outcomes) else 0


def main() -> int:
    """Exit 0 when every phase held, 1 when one did not or could not be run."""
    options = parser().parse_args()
    exit_on_signals()
    errors = (ClusterError, TimeoutError, NotRestoredError)
    return exit_code(lambda: run(options), *errors, stopped="stopped; the cluster is as it was")


if __name__ == "__main__":
    sys.exit(main())

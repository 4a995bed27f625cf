"""`inflight-simulate replay-decisions`."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = """\
`inflight-operator run --record-decisions FOLDER` (chart value recordDecisions.enabled) makes a recording. Each round in
it has the inputs of the decision (spec, pods, Deployment, samples of the engines), the memory of earlier rounds, and
the plan. `decide` of this version gets the same inputs, and the plans are compared field by field, including the memory
for the next round. Each file can be replayed alone. A file that is still being written, or was truncated, is replayed
up to its end.

Prints the decisions with their reasons, and `no difference` (exit status 0) or the first differences (exit status 1).
A file of another version ends with 2 and names the version.

example:
  kubectl exec -n inflight-system deploy/inflight-operator -- tar -C /recording -c . | tar -x
  inflight-simulate replay-decisions decisions-*.zst"""


def add_replay_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recordings", type=Path, nargs="+", metavar="FILE", help="files of a recording, the oldest first"
    )
    parser.add_argument(
        "--decisions", action="store_true", help="list all decisions, not only the last of each service"
    )
    parser.add_argument(
        "--service",
        action="append",
        default=[],
        metavar="NAMESPACE/NAME",
        help="replay this service only; repeat it for several (default: all)",
    )


def run_replay(flags: argparse.Namespace) -> int:
    """Raises InputError, and OSError where a file cannot be read."""
    # Imported on demand: the operator's types double the start-up time of every other command.
    from inflight_simulator.replay_decisions import replay_files

    return replay_files(flags.recordings, flags.service, every_decision=flags.decisions)

"""The command `inflight-simulate`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from inflight_simulator.calibrate import add_calibrate_flags, run_calibrate
from inflight_simulator.engine_command import add_common_flags, add_engine_command_flags, run_compare, run_engine
from inflight_simulator.errors import InputError
from inflight_simulator.fleet.commands.command import EPILOG as FLEET_EPILOG
from inflight_simulator.fleet.commands.command import add_fleet_command_flags, run_fleet_command
from inflight_simulator.fleet.commands.compare_command import EPILOG as FLEET_COMPARE_EPILOG
from inflight_simulator.fleet.commands.compare_command import add_fleet_compare_flags, run_fleet_compare
from inflight_simulator.fleet.commands.plan_command import EPILOG as PLAN_EPILOG
from inflight_simulator.fleet.commands.plan_command import add_plan_flags, run_plan
from inflight_simulator.replay_command import HELP as REPLAY_HELP
from inflight_simulator.replay_command import add_replay_flags, run_replay
from inflight_simulator.trace_files import FORMATS


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 success, 1 failure (reason on standard error), 2 wrong usage or an invalid file."""
    flags = build_parser().parse_args(argv)
    try:
        status: int = flags.run(flags)
    except InputError as error:
        return _failed(str(error), 2)
    except OSError as error:
        return _failed(f"{error.filename or 'standard output'}: {error.strerror}", 1)
    return status


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="inflight-simulate",
        description="Run Inflight's scheduler and autopilot on a virtual clock.",
        epilog="example: inflight-simulate compare simulator/examples/four.csv",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"inflight-simulate {version('inflight')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, text: str, example: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=example,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    engine = command(
        "engine",
        "simulate one engine that serves a file of arrivals",
        f"{FORMATS}\n\nexample: inflight-simulate engine simulator/examples/four.csv --plot four.png",
    )
    add_engine_command_flags(engine)
    engine.set_defaults(run=run_engine)
    compare = command(
        "compare",
        "compare static batching with continuous batching, without and with chunked prefill",
        f"{FORMATS}\n\nexample: inflight-simulate compare simulator/examples/burst.csv --cost unit --max-num-seqs 8",
    )
    add_common_flags(compare)
    compare.set_defaults(run=run_compare)
    calibrate = command(
        "calibrate",
        "fit the cost model to a recording of a real engine",
        "example:\n  inflight-engine serve builtin://smollm2 --record run.gz\n"
        "  inflight-simulate calibrate run.gz --out cost.json\n  inflight-simulate engine ARRIVALS --cost cost.json",
    )
    add_calibrate_flags(calibrate)
    calibrate.set_defaults(run=run_calibrate)
    fleet = command(
        "fleet",
        "simulate a fleet of replicas under an autoscaler, for a file of arrivals",
        FLEET_EPILOG,
    )
    add_fleet_command_flags(fleet)
    fleet.set_defaults(run=run_fleet_command)
    fleet_compare = command(
        "fleet-compare",
        "compare public autoscalers on the same arrivals",
        FLEET_COMPARE_EPILOG,
    )
    add_fleet_compare_flags(fleet_compare)
    fleet_compare.set_defaults(run=run_fleet_compare)
    planned = command(
        "plan",
        "plan capacity for this traffic: replicas, limits, cost, and the first bottleneck at twice the load",
        PLAN_EPILOG,
    )
    add_plan_flags(planned)
    planned.set_defaults(run=run_plan)
    replay = command(
        "replay-decisions",
        "repeat recorded decisions of the operator and compare",
        REPLAY_HELP,
    )
    add_replay_flags(replay)
    replay.set_defaults(run=run_replay)
    return parser


def _failed(sentence: str, status: int) -> int:
    print("error:", sentence, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())

"""`python -m e2e.clients`: runs clients and suites of others against an engine and a gateway, and prints a table."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from e2e.clients.environment import lock
from e2e.clients.results import Results
from e2e.clients.run import run_all
from e2e.clients.suites import SUITES, WAYS, Suite
from tools.localcluster.progress import to_stdout
from tools.measure.report import Rows, table
from tools.signals import exit_code, exit_on_signals

DESCRIPTION = """Runs clients and suites of others against an engine with the built-in model, directly and through a
gateway (Envoy, relay and picker as processes; no cluster). Each suite runs in an environment of its own, which uv makes
from pinned versions and caches; no suite asks another server.

Tests that are known not to pass are in e2e/clients/suites.py, with the reasons. One of them that passes is a fault."""

_LOGS = "keep reports, outputs and logs of the servers in this folder, which is new or empty"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = argparse.ArgumentParser(
        prog="python -m e2e.clients",
        description=DESCRIPTION,
        epilog="exit code: 0 all tests that must pass did, 1 one did not\n\n"
        "example: python -m e2e.clients --only llm-comply,openai --ways direct",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ",".join(each.name for each in SUITES)
    line.add_argument("--only", type=_suites, default=SUITES, metavar="SUITES", help=f"some of {names}")
    line.add_argument("--ways", choices=("both", *WAYS), default="both", help="default both")
    line.add_argument("--logs", type=Path, metavar="FOLDER", help=_LOGS)
    line.add_argument("--lock", action="store_true", help="only resolve the requirements of the suites again")
    return line


def _suites(text: str) -> tuple[Suite, ...]:
    named = {each.name: each for each in SUITES}
    try:
        return tuple(named[name] for name in text.split(","))
    except KeyError as error:
        raise argparse.ArgumentTypeError(f"there is no suite {error.args[0]!r}") from None


def rows(found: dict[Suite, dict[str, Results | str]]) -> Rows:
    """A row for each suite, a column for each way."""
    ways = [way for way in WAYS if any(way in each for each in found.values())]
    results = [[suite.name, suite.client, *(str(each.get(way, "")) for way in ways)] for suite, each in found.items()]
    return [["suite", "client", *ways], *results]


def faults(found: dict[Suite, dict[str, Results | str]]) -> list[str]:
    """A line for each fault."""
    return [
        f"{suite.name}, {way}: {line}"
        for suite, results in found.items()
        for way, result in results.items()
        for line in ([result] if isinstance(result, str) else result.faults())
    ]


def run(options: argparse.Namespace) -> int:
    """Exit code: see `parser`. Prints the table and the faults."""
    if options.lock:
        for suite in options.only:
            lock(suite)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.logs or Path(temporary)).resolve()
        ways = WAYS if options.ways == "both" else (options.ways,)
        found = run_all(options.only, folder, ways, to_stdout())
    wrong = faults(found)
    print("", *table(rows(found)), *(["", *wrong] if wrong else []), sep="\n", flush=True)
    return 1 if wrong else 0


def main() -> int:
    """Exit code: see `parser`."""
    options = parser().parse_args()
    exit_on_signals()
    return exit_code(lambda: run(options), OSError, RuntimeError, subprocess.CalledProcessError)


if __name__ == "__main__":
    sys.exit(main())

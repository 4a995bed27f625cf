"""`replay FILE`: repeats recorded decisions with the program that belongs to the recording."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click

from inflight_kubectl.engines.recordings import Kind, kind_of
from inflight_kubectl.output import Problem

PROGRAMS: dict[Kind, tuple[str, str, str]] = {
    "operator": ("inflight-simulate", "replay-decisions", "simulator"),
    "engine": ("inflight-engine", "replay", "engine"),
}
"""Program that wrote a recording -> the program that replays it, its command, and the package's extra that installs
it."""


@click.command(
    "replay",
    epilog="""\b
Examples:
  kubectl inflight replay chat-decisions.zst                    # last decisions, and whether they come out the same
  kubectl inflight replay chat-decisions.zst --decisions        # all decisions with their reasons
  kubectl inflight replay chat-engine.jsonl.gz --json
""",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE...")
@click.option("--decisions", is_flag=True, help="List all decisions of the operator, not only the last.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; for recordings of engines.")
def replay(files: tuple[Path, ...], decisions: bool, as_json: bool) -> None:
    """Repeat the decisions in recordings, and compare them with what was decided.

    The program of the recording's side does it: inflight-simulate for the operator's decisions, inflight-engine for an
    engine's scheduler. It must be of the version that recorded. The exit code is 1 where something came out
    differently, 2 where a file cannot be replayed.
    """
    kinds = {kind_of(file) for file in files}
    if len(kinds) > 1:
        raise Problem("these are recordings of the operator and of engines", "Replay them one after the other")
    (kind,) = kinds
    if kind == "engine" and (decisions or len(files) > 1):
        raise click.UsageError("a recording of an engine is replayed alone and without --decisions")
    if kind == "operator" and as_json:
        raise click.UsageError("--json is for recordings of engines")
    program, command, extra = PROGRAMS[kind]
    given = [*(["--decisions"] if decisions else []), *(["--json"] if as_json else []), *map(str, files)]
    sys.exit(subprocess.run([_found(program, extra), command, *given], check=False).returncode)


COMMAND = replay


def _found(program: str, extra: str) -> str:
    """Returns the path of a program: beside this one, or in $PATH.

    Raises:
        Problem: it is not installed.
    """
    beside = Path(sys.executable).with_name(program)
    found = str(beside) if beside.exists() else shutil.which(program)
    if found is None:
        raise Problem(
            f"this needs the program {program}, which is not installed",
            f"Install it from the sources of this project: pip install '.[{extra}]'",
        )
    return found

"""Command line of generators of checked-in files: `--write` writes them, `--check` compares them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.localcluster.layout import REPOSITORY


def run(module: str, description: str | None, files: Mapping[Path, str], arguments: list[str] | None = None) -> int:
    """Exit code: 1 where `--check` finds a file that differs.

    Args:
        module: name of the command, as after `python -m`.
        files: the text of each file, by its absolute path.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the files")
    action.add_argument("--check", action="store_true", help="exit with 1 where a file differs from what is generated")
    write = parser.parse_args(arguments).write
    differing = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    if write:
        for path in differing:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path])
            print(f"wrote {path.relative_to(REPOSITORY)}")
        return 0
    for path in differing:
        print(f"{path.relative_to(REPOSITORY)} is out of date: run `python -m {module} --write`", file=sys.stderr)
    return 1 if differing else 0

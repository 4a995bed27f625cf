"""Finds docstrings whose subject is elsewhere, as in "Of a piece." `make lint` runs it.

A docstring is read in a tooltip, in `help()` or in a list, without the code above or below it. So it says its subject
and its unit: "Minimum number of tokens in a piece." The check covers docstrings of modules, classes and functions, and
strings below constants and attributes.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUFF = Path(sys.executable).parent / "ruff"
BEGINNING = re.compile(r"\s*(Of|As|Those|What|Whether|One)(?![\w-])")


def find(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line number and the first line of each docstring in `source` that begins without its subject."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if BEGINNING.match(text):
                yield node.lineno, text.strip().splitlines()[0]


def files() -> list[Path]:
    """Returns the files that the linter checks, which git does not ignore."""
    listed = subprocess.run([RUFF, "check", "--show-files", "."], cwd=ROOT, capture_output=True, text=True, check=True)
    return [Path(line) for line in sorted(listed.stdout.splitlines()) if line.endswith(".py")]


def main() -> int:
    """Print each docstring to rewrite; returns 1 if there is one, else 0."""
    found = [f"{path.relative_to(ROOT)}:{line}: {text}" for path in files() for line, text in find(path.read_text())]
    if found:
        print("\n".join(found))
        print(f"error: {len(found)} docstrings begin with Of, As, Those, What, Whether or One. Begin with the subject")
        print("or a verb: 'Minimum number of tokens in a piece.'")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

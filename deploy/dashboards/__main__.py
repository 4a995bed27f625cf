"""`python -m dashboards --write` writes the dashboards into the chart; `--check` fails where they differ."""

from __future__ import annotations

import argparse
import sys

from deploy.dashboards.documents import FOLDER, documents


def main() -> int:
    """Exit status: 1 where `--check` found a difference."""
    parser = argparse.ArgumentParser(prog="python -m dashboards", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the JSON files into the chart")
    action.add_argument("--check", action="store_true", help="compare them with what the code makes")
    arguments = parser.parse_args()
    files = {FOLDER / f"{name}.json": text for name, text in documents().items()}
    if arguments.write:
        FOLDER.mkdir(exist_ok=True)
        for path, text in files.items():
            path.write_text(text)
        return 0
    stale = [path.name for path, text in files.items() if not path.exists() or path.read_text() != text]
    stale += [path.name for path in FOLDER.glob("*.json") if path not in files]
    if stale:
        print(f"not up to date: {', '.join(sorted(stale))}; run make dashboards-json", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

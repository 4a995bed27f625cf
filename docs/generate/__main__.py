"""Writes the reference pages of the documentation, or checks that they are up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from docs.generate import flags, metrics, resource

DOCS = Path(__file__).resolve().parents[1]

FILES: dict[str, Callable[[], str]] = {
    "reference/inferenceservice.md": resource.page,
    "reference/inflight-engine.md": flags.engine_page,
    "reference/inflight-gateway.md": flags.gateway_page,
    "reference/inflight-operator.md": flags.operator_page,
    "reference/inflight-simulate.md": flags.simulator_page,
    "reference/metrics.md": metrics.page,
    "reference/kubectl-inflight.md": flags.kubectl_page,
}
"""Path below `docs`, and what makes its text."""


def stale() -> list[str]:
    """Files that differ from what would be written."""
    return [name for name, make in FILES.items() if not (DOCS / name).is_file() or (DOCS / name).read_text() != make()]


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 done or up to date, 1 with --check when a file is stale."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write the files that are stale")
    mode.add_argument("--check", action="store_true", help="exit with 1 and name the files that are stale")
    chosen = parser.parse_args(arguments)
    found = stale()
    if chosen.check:
        for name in found:
            print(f"stale: docs/{name}; run: make docs-reference", file=sys.stderr)
        return 1 if found else 0
    for name in found:
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(FILES[name]())
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

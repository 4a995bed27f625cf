"""`make test`: every check, in the order in which failures are cheapest, with its duration.

The local cluster is prepared in the background meanwhile, as building it once is the longest part.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import layout

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
PYTEST = (sys.executable, "-m", "pytest")


@dataclass(frozen=True)
class Check:
    """A named command that must exit 0."""

    name: str
    command: tuple[str, ...]
    needs_cluster: bool = False


CHECKS = (
    Check("format", (str(BIN / "ruff"), "format", "--check", ".")),
    Check("lint", (str(BIN / "ruff"), "check", ".")),
    Check("import rules", (str(BIN / "lint-imports"),)),
    Check("types", (str(BIN / "mypy"),)),
    Check("unit tests", (*PYTEST, "-m", "not contract and not cluster")),
    Check("contract tests", (*PYTEST, "-m", "contract"), needs_cluster=True),
    Check("end-to-end tests", (*PYTEST, "e2e/scenarios"), needs_cluster=True),
)


def prepare_cluster(log: Path) -> subprocess.Popen[bytes]:
    """Start building and installing the local cluster; its output goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            ["nice", "-n", "5", sys.executable, "-m", "e2e.install"], stdout=output, stderr=subprocess.STDOUT, cwd=ROOT
        )


def wait_for(preparation: subprocess.Popen[bytes], log: Path) -> bool:
    """Pass on the preparation's output until it ends; True when it succeeded."""
    print(f"\n== local cluster (its log: {log})", flush=True)
    with log.open() as lines:
        while True:
            ended = preparation.poll() is not None
            print(lines.read(), end="", flush=True)
            if ended:
                return preparation.returncode == 0
            time.sleep(1)


def main() -> int:
    """Exit 0 when every check passed; stops at the first that fails."""
    parser = argparse.ArgumentParser(prog="python -m e2e.check", description=__doc__)
    parser.parse_args()
    log = layout.current().logs / "make-test-cluster.log"
    preparation: subprocess.Popen[bytes] | None = prepare_cluster(log)
    durations: list[str] = []
    try:
        for check in CHECKS:
            if check.needs_cluster and preparation is not None:
                if not wait_for(preparation, log):
                    print("error: the local cluster could not be prepared; `make unit` runs what needs none")
                    return 1
                preparation = None
            print(f"\n== {check.name}", flush=True)
            started = time.monotonic()
            code = subprocess.run(check.command, cwd=ROOT, check=False).returncode
            durations.append(f"{check.name} {time.monotonic() - started:.0f} s")
            if code != 0:
                print(f"\nerror: {check.name} failed (exit code {code}): {' '.join(check.command)}")
                return 1
    finally:
        if preparation is not None and preparation.poll() is None:
            preparation.terminate()
            preparation.wait()
        print("\n" + ", ".join(durations), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

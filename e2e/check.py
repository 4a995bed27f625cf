"""`make test`: every check, in the order in which failures are cheapest, with its duration.

The local cluster is prepared in the background meanwhile, as building it once is the longest part.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from e2e.cluster import ClusterError, layout
from e2e.cluster.api import preflight

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
END_SECONDS = 10
PYTEST = (sys.executable, "-m", "pytest")
PREPARE = (sys.executable, "-m", "e2e.install")


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
    """Start building and installing the local cluster; its output goes to `log`.

    A process group of its own: only `end` ends it, with all that it started but the cluster itself.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            PREPARE,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            process_group=0,
        )


def end(preparation: subprocess.Popen[bytes]) -> None:
    """End a preparation and its compilers and image builds; a later one goes on from there."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        if preparation.poll() is not None:
            return
        os.killpg(preparation.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            preparation.wait(timeout=END_SECONDS)


def run(check: Check) -> int:
    """Run a check in the foreground; its exit code. One that is stopped may end in order, with what it started."""
    with subprocess.Popen(check.command, cwd=ROOT) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()  # the terminal's Ctrl-C came to it too
            raise
        except SystemExit:
            process.send_signal(signal.SIGINT)
            raise


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


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
    signal.signal(signal.SIGTERM, _on_sigterm)
    parser = argparse.ArgumentParser(prog="python -m e2e.check", description=__doc__)
    parser.parse_args()
    try:
        preflight()
    except ClusterError as error:
        print(f"error: {error}; `make lint types unit` runs what needs no cluster", file=sys.stderr)
        return 1
    log = layout.current().logs / "make-test-cluster.log"
    preparation: subprocess.Popen[bytes] | None = prepare_cluster(log)
    durations: list[str] = []
    try:
        for check in CHECKS:
            if check.needs_cluster and preparation is not None:
                if not wait_for(preparation, log):
                    print("error: the local cluster could not be prepared; `make lint types unit` runs what needs none")
                    return 1
                preparation = None
            print(f"\n== {check.name}", flush=True)
            started = time.monotonic()
            code = run(check)
            durations.append(f"{check.name} {time.monotonic() - started:.0f} s")
            if code != 0:
                print(f"\nerror: {check.name} failed (exit code {code}): {' '.join(check.command)}")
                return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 1
    finally:
        if preparation is not None:
            end(preparation)
        print("\n" + ", ".join(durations), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`make test`: every check, with its duration, and the first failure ends it.

Two tracks, for two cores. In front run the checks that need no cluster, the cheapest failures first. In the background
promtool is installed, which the unit tests need, and types are checked; then the local cluster is prepared, which is
the longest part where nothing is built yet; then come the contract tests, which mostly wait, and checkov over the
manifests. Scenarios under traffic come last and alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.localcluster import ClusterError, layout, require_machine
from tools.signals import exit_on_signals

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
END_SECONDS = 10
PYTEST = (sys.executable, "-m", "pytest", "--durations=5", "--durations-min=5")
# A file's tests in one process: they share servers and models. Not the files with most tests first: the one that takes
# longest has three.
IN_PARALLEL = ("-n", "auto", "--maxprocesses=4", "--dist=loadfile", "--no-loadscope-reorder")
# From the folders that have some: to import all others takes longer than most of these tests.
CONTRACT = (
    *("-m", "contract", "tests/chart", "tests/tools/localcluster", "tests/contract", "tests/vllm_plugin"),
    *("tests/deploy", "tests/engine/kv_events", "tests/gateway/engines", "tests/gateway/relay/answers"),
    "tests/e2e/clients",
)


@dataclass(frozen=True)
class Check:
    """A named command that must exit 0."""

    name: str
    command: tuple[str, ...]


IN_FRONT = (
    Check("format", (str(BIN / "ruff"), "format", "--check", ".")),
    Check("lint", (str(BIN / "ruff"), "check", ".")),
    Check("import rules", (str(BIN / "lint-imports"),)),
    Check("unit tests", (*PYTEST, *IN_PARALLEL, "-m", "not contract and not cluster")),
)
IN_BACKGROUND = (
    Check("promtool", (sys.executable, "-m", "tools.localcluster", "promtool-path")),
    Check("types", (str(BIN / "mypy"),)),
    Check("local cluster", (sys.executable, "-m", "tools.testbed.install")),
    Check("contract tests", (*PYTEST, *CONTRACT)),
    Check("scan of the manifests", (sys.executable, "-m", "deploy.scan")),
)
AT_LAST = (Check("end-to-end tests", (*PYTEST, "e2e/scenarios")),)


class Background:
    """Runs checks one after the other beside everything else, their output in `log`.

    Each runs in a process group of its own: only `end` ends it, with all that it started but the cluster itself.
    """

    def __init__(self, checks: Sequence[Check], log: Path) -> None:
        self.log = log
        self.durations: list[str] = []
        self.failed: Check | None = None
        self._checks = checks
        self._running: subprocess.Popen[bytes] | None = None
        self._ending = False
        self._lock = threading.Lock()
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        with self.log.open("ab") as output:
            for check in self._checks:
                output.write(f"\n== {check.name}\n".encode())
                output.flush()
                started = time.monotonic()
                with self._lock:
                    if self._ending:
                        return
                    self._running = subprocess.Popen(
                        check.command,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        cwd=ROOT,
                        process_group=0,
                    )
                code = self._running.wait()
                self.durations.append(_duration(check, started))
                if code != 0:
                    self.failed = check
                    return

    def end(self) -> None:
        """End what still runs, with its compilers and image builds; a later preparation goes on from there.

        SIGINT first: tests that get it end the API servers that they started, which are in sessions of their own.
        """
        with self._lock:
            self._ending = True
        for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if self._running is None or self._running.poll() is not None:
                break
            os.killpg(self._running.pid, sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._running.wait(timeout=END_SECONDS)
        self._thread.join()

    def wait(self) -> bool:
        """Pass on the output, from its beginning, until all has ended; True when nothing failed."""
        print(f"\n== meanwhile (log: {self.log})", flush=True)
        with self.log.open() as lines:
            while True:
                ended = self.ended
                print(lines.read(), end="", flush=True)
                if ended:
                    return self.failed is None
                time.sleep(1)


def run(check: Check, background: Background) -> int:
    """Run a check in front; its exit code, or 1 as soon as one in the background failed.

    One that is stopped may end in order, with what it started.
    """
    with subprocess.Popen(check.command, cwd=ROOT) as process:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(timeout=1)
                if background.failed is not None:
                    process.send_signal(signal.SIGINT)
                    process.wait()
                    return 1
        except KeyboardInterrupt:
            process.wait()  # the terminal's Ctrl-C came to it too
            raise
        except SystemExit:
            process.send_signal(signal.SIGINT)
            raise


def _duration(check: Check, started: float) -> str:
    return f"{check.name} {time.monotonic() - started:.0f} s"


def passed(check: Check, background: Background, durations: list[str]) -> bool:
    """Run a check in front; whether it passed. Prints the command of a check that failed and was not stopped."""
    print(f"\n== {check.name}", flush=True)
    started = time.monotonic()
    code = run(check, background)
    durations.append(_duration(check, started))
    if code != 0 and background.failed is None:
        print(f"\nerror: {check.name} failed (exit code {code}): {' '.join(check.command)}")
    return code == 0


def check_all(background: Background, durations: list[str]) -> bool:
    """Returns whether everything passed; prints the check that failed."""
    in_front = all(passed(check, background, durations) for check in IN_FRONT)
    if not in_front and background.failed is None:
        return False
    if not background.wait():
        assert background.failed is not None
        print(f"\nerror: {background.failed.name} failed: {' '.join(background.failed.command)}")
        print("`make lint types unit` runs what needs no cluster")
        return False
    return in_front and all(passed(check, background, durations) for check in AT_LAST)


def main() -> int:
    """Exit 0 when every check passed; stops at the first that fails."""
    exit_on_signals()
    parser = argparse.ArgumentParser(prog="python -m tools.check", description=__doc__)
    parser.parse_args()
    try:
        require_machine()
    except ClusterError as error:
        print(f"error: {error}; `make lint types unit` runs what needs no cluster", file=sys.stderr)
        return 1
    started = time.monotonic()
    background = Background(IN_BACKGROUND, layout.current().logs / "make-test-background.log")
    durations: list[str] = []
    try:
        all_passed = check_all(background, durations)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        all_passed = False
    finally:
        background.end()
        print("\n" + ", ".join(durations))
        print("beside them: " + ", ".join(background.durations))
        print(f"{time.monotonic() - started:.0f} s in all", flush=True)
    return 0 if all_passed else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tools.bench.autopilot`: measures, then prints the tables."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from inflight_operator.apply.engines import EngineError
from tools.bench.autopilot import options, report
from tools.bench.autopilot.measure import Bench, measure
from tools.bench.engine.peers import InstallError
from tools.measure.report import cpu_model, say, write_json
from tools.signals import exit_on_signals


def main() -> int:
    """Exit 0 when all was measured, whatever the figures are; 1 when something could not be."""
    flags = options.parse(None)
    exit_on_signals()  # and the engines end with it
    began = time.monotonic()
    logs = flags.logs or Path(tempfile.mkdtemp(prefix="inflight-bench-"))
    logs.mkdir(parents=True, exist_ok=True)
    machine = (
        f"{time.strftime('%Y-%m-%d')}, {cpu_model()}, {len(os.sched_getaffinity(0))} cores,"
        f" load {os.getloadavg()[0]:.1f} at the start"
    )
    say(machine)
    try:
        found = asyncio.run(measure(Bench(flags, say, logs)))
    except (RuntimeError, ValueError, EngineError, InstallError) as error:
        print(f"error: {error}; the engines' logs are in {logs}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 1
    print(f"{machine}\n{report.text(found)}")
    write_json(flags.json, {"machine": machine, **report.as_json(found)})
    say(f"{time.monotonic() - began:.0f} s; the engines' logs are in {logs}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

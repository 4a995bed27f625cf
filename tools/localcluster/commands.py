"""Programs that run and end: where they are, their output, and their complaint where they fail."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.localcluster.errors import ClusterError


def installed(name: str) -> str:
    """Path of a program from the Python environment that runs this, or from PATH. Raises ClusterError without one."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if not path:
        raise ClusterError(f"{name} is missing: install this project's `dev` extra, or {name} itself")
    return path


def output(
    command: Sequence[str],
    failure: str = "`{command}` failed: {complaint}",
    *,
    text: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
) -> str:
    """Runs `command`; returns its output.

    Args:
        failure: message where it fails, with `{command}`, `{complaint}` for its error output, and `{last}`
            for the last line of that.
        text: its standard input.

    Raises:
        ClusterError: it failed, with `check`.
    """
    done = subprocess.run(list(command), input=text, capture_output=True, text=True, check=False, env=env, cwd=cwd)
    if check and done.returncode:
        complaint = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        facts = {"{command}": " ".join(command), "{complaint}": complaint, "{last}": last_line(complaint)}
        raise ClusterError(re.sub("|".join(map(re.escape, facts)), lambda found: facts[found[0]], failure))
    return done.stdout


def followed(
    command: Sequence[str],
    read: Callable[[str], None],
    running: set[subprocess.Popen[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> int:
    """Run `command`, `read` each line of its output, and return its exit code; it ends with this call in any case.

    Its process is in `running` while it runs, for those who have to end it.
    """
    process = subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    running.add(process)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            read(line.rstrip())
        return process.wait()
    finally:
        process.terminate()
        process.wait()
        running.discard(process)


def last_line(text: str) -> str:
    """The last line of `text` that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"

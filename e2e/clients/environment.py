"""Environments of suites: uv makes them from the pins and caches them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from e2e.clients.suites import PYTEST, Suite

_UV = str(Path(sys.executable).with_name("uv"))

VARIABLES = {
    # No suite asks another server than ours.
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    # This process' Python is not the suite's.
    "PYTHONPATH": "",
    "VIRTUAL_ENV": "",
}
"""Variables of a suite's processes."""


def command(suite: Suite, *arguments: str) -> list[str]:
    """Returns the command that runs a program of the suite's environment."""
    flags = ("--quiet", "--no-project", "--isolated", "--no-config", "--python", sys.executable)
    return [_UV, "run", *flags, "--with-requirements", str(suite.pins), *arguments]


def lock(suite: Suite) -> None:
    """Writes the pins of a suite: its requirements and their dependencies.

    Raises:
        subprocess.CalledProcessError: they cannot be resolved; uv's message is on standard error.
    """
    flags = ("--quiet", "--no-emit-index-url", "--no-header", "--no-annotate", "--python", sys.executable)
    subprocess.run(
        [_UV, "pip", "compile", *flags, "--output-file", str(suite.pins), "-"],
        input="\n".join((*suite.requirements, PYTEST)).encode(),
        check=True,
        stdout=subprocess.DEVNULL,
    )

"""How torch's CPU threads wait for each other."""

from __future__ import annotations

import os
import sys

_POLICY = "OMP_WAIT_POLICY"


def let_threads_sleep() -> None:
    """Let idle OpenMP threads sleep, unless the environment has an `OMP_WAIT_POLICY`. Call it where a process starts:
    the library reads the policy when torch is imported.

    By default the threads spin, which is a little quicker on an idle machine; where anything else wants the CPUs (the
    API process does, and so do a pod's neighbours) a spinning thread keeps its partner from running, and a step was
    seen to take ten times as long.

    Raises:
        RuntimeError: torch is imported already.
    """
    if _POLICY in os.environ:
        return
    if "torch" in sys.modules:
        raise RuntimeError(f"{_POLICY} has no effect any more: torch is imported already")
    os.environ[_POLICY] = "PASSIVE"

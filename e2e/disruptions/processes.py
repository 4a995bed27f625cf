"""The processes of a pod, found from the host by the pod's control group, and signals to them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tools.localcluster.node import cgroups

PAUSE = "pause"
"""Name of the process that holds a pod's namespaces."""

VLLM_ENGINE = "VLLM::EngineCor"
"""Name of vLLM's process that computes, as far as Linux keeps it. Its API process has torch loaded, too."""


def of_pod(uid: str) -> list[int]:
    """Pids of all processes of the pod, its pause process included; ascending."""
    name = f"pod{uid}"
    return sorted(cgroups.processes_in(each for each in cgroups.folders_of(cgroups.own_groups()) if each.name == name))


def of_containers(uid: str) -> list[int]:
    """Pids of the processes of the pod's containers."""
    return [pid for pid in of_pod(uid) if _name(pid) != PAUSE]


def pause_process(uid: str) -> int:
    """The process that holds the pod's namespaces.

    Raises:
        LookupError: there is none.
    """
    for pid in of_pod(uid):
        if _name(pid) == PAUSE:
            return pid
    raise LookupError(f"pod {uid} has no process {PAUSE}")


def engine_process(uid: str) -> int:
    """The process that computes: the only one of the pod's that has torch loaded, or vLLM's that is named so.

    Raises:
        LookupError: there is none.
    """
    loaded = [pid for pid in of_containers(uid) if _has_torch(pid)]
    for pid in [*(pid for pid in loaded if _name(pid).startswith(VLLM_ENGINE)), *loaded]:
        return pid
    raise LookupError(f"no process of pod {uid} has torch loaded")


def _has_torch(pid: int) -> bool:
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def with_argument(uid: str, argument: str) -> list[int]:
    """Processes of the pod's containers whose command line has the argument."""
    return [pid for pid in of_containers(uid) if argument in _command(pid)]


def send(pids: Iterable[int], sent: signal.Signals) -> None:
    """Signal each process that still exists."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, sent)


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""

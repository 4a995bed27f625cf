"""Memory on machines with several NUMA nodes. No torch.

All threads of a process form one team, so every node's cores read all weights and every sequence's keys and values.
Pages are therefore interleaved over the nodes: each controller serves its share, whichever thread reads.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
from collections.abc import Callable, Collection
from pathlib import Path

log = logging.getLogger(__name__)

_MPOL_INTERLEAVE = 3
_SET_MEMPOLICY = {"x86_64": 238, "AMD64": 238, "aarch64": 237}
_MASK_BITS = 1024

SetPolicy = Callable[[Collection[int]], int]
"""Interleaves this thread's memory, and that of the threads it starts, over nodes; gives an error number or 0."""


def numbers(text: str) -> set[int]:
    """Parse a list of the kernel such as `0-3,8`."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def nodes_of(cpus: Collection[int], proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> set[int]:
    """Return the nodes that have some of these CPUs and whose memory this process may take; empty where the kernel does
    not say."""
    nodes = {
        int(folder.name.removeprefix("node"))
        for folder in (sys / "devices/system/node").glob("node[0-9]*")
        if numbers((folder / "cpulist").read_text()) & set(cpus)
    }
    try:
        status = (proc / "self/status").read_text()
    except OSError:
        return nodes
    allowed = [line.partition(":")[2] for line in status.splitlines() if line.startswith("Mems_allowed_list:")]
    return nodes & numbers(allowed[0]) if allowed else nodes


def interleave_memory(nodes: Collection[int], set_policy: SetPolicy | None = None) -> bool:
    """Interleave what is allocated from here on, where there is more than one node. False: the memory stays where it is
    first touched, also where the container's seccomp profile forbids the call."""
    if len(nodes) < 2:
        return False
    error = (set_policy or _set_policy)(nodes)
    if error:
        log.warning("memory is not interleaved over the NUMA nodes %s: %s", sorted(nodes), os.strerror(error))
        return False
    log.info("memory is interleaved over the NUMA nodes %s", sorted(nodes))
    return True


def _set_policy(nodes: Collection[int]) -> int:
    """Call `set_mempolicy(2)`."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return errno.ENOSYS
    words = (ctypes.c_ulong * (_MASK_BITS // 64))()
    for node in nodes:
        words[node // 64] |= 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.syscall(number, ctypes.c_int(_MPOL_INTERLEAVE), ctypes.byref(words), ctypes.c_ulong(_MASK_BITS))
    return ctypes.get_errno() if failed else 0

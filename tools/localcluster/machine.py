"""Properties of this machine, read only: memory, disk, users, namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def parse_meminfo(text: str) -> dict[str, int]:
    """Bytes by name from the text of /proc/meminfo."""
    sizes = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields:
            sizes[name] = int(fields[0]) * (1024 if fields[-1] == "kB" else 1)
    return sizes


def available_memory() -> int:
    """Bytes that programs can still get without swapping."""
    return parse_meminfo(Path("/proc/meminfo").read_text())["MemAvailable"]


def free_disk(path: Path) -> int:
    """Bytes free for this user on the file system that holds `path` or its nearest existing parent."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def is_root() -> bool:
    return os.geteuid() == 0


def namespace_problem() -> str | None:
    """Make the namespaces, the mount and the veth pair that pods need, once; the kernel's complaint, or None.

    Without the program `ip`, which is installed with the other packages later, the pair is not tried.
    """
    script = (
        "mount -t tmpfs none /mnt && "
        "{ ! command -v ip >/dev/null || ip link add inflight-try type veth peer name inflight-peer; }"
    )
    try:
        done = subprocess.run(
            ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "sh", "-c", script],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return "the program unshare is missing"
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

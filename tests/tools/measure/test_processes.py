import subprocess
import sys

import pytest

from tools.measure.processes import (
    Memory,
    busy_seconds,
    cpu_seconds,
    family_cpu,
    family_memory_mib,
    memory,
    process_cpu,
    process_memory,
    touch_memory,
)


def test_cpu_time_is_read_behind_a_name_with_blanks_and_parentheses():
    fields = ["S", *["0"] * 10, "150", "50", *["0"] * 8]
    assert cpu_seconds(f"1 (a ) b) {' '.join(fields)}") == pytest.approx(2.0)


def test_a_machine_is_busy_but_when_idle_or_waiting_for_disks():
    assert busy_seconds("cpu  100 50 30 9999 888 15 5 0 0 0\ncpu0 1 2 3\n") == pytest.approx(2.0)


def test_memory_is_in_bytes():
    assert memory("Name:\tx\nVmHWM:\t  20 kB\nVmRSS:\t  10 kB\n") == Memory(10240, 20480)


CHILD = "sum(range(5_000_000)); print(flush=True); input()"
PARENT = f"""
import subprocess, sys
with subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    child.stdout.readline()
    print(child.pid, flush=True)
    input()
    child.communicate(b"end")
"""


def test_a_family_has_the_time_and_memory_of_its_children():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        alone, of_child = process_cpu(parent.pid), process_cpu(child)
        assert of_child > 0
        assert family_cpu(parent.pid) >= alone + of_child
        assert family_memory_mib(parent.pid) > family_memory_mib(child) > 0
        parent.communicate(b"end")


def test_touched_memory_is_resident_and_has_what_it_had():
    command = (
        "import mmap; own = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE); own[5 << 20] = 7; print(flush=True); input();"
        "print(own[5 << 20], sum(own[::4096]))"
    )
    with subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        before = process_memory(child.pid).now
        touch_memory(child.pid)
        assert process_memory(child.pid).now - before >= 60 << 20
        assert child.communicate(b"\n")[0].split() == [b"7", b"7"]

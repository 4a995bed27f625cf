import os
import subprocess
import sys

import pytest

from bench.processes import Memory, busy_seconds, cpu_seconds, family_cpu, family_memory_mib, memory, process_cpu


def test_cpu_time_is_read_behind_a_name_with_blanks_and_parentheses():
    fields = ["S", *["0"] * 10, "150", "50", *["0"] * 8]
    assert cpu_seconds(f"1 (a ) b) {' '.join(fields)}") == pytest.approx(2.0)


def test_a_machine_is_busy_but_when_idle_or_waiting_for_disks():
    assert busy_seconds("cpu  100 50 30 9999 888 15 5 0 0 0\ncpu0 1 2 3\n") == pytest.approx(2.0)


def test_memory_is_in_bytes():
    assert memory("Name:\tx\nVmHWM:\t  20 kB\nVmRSS:\t  10 kB\n") == Memory(10240, 20480)


def test_a_family_has_the_time_and_memory_of_its_children():
    child = "import sys; sum(range(5_000_000)); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        alone, child_alone = process_cpu(os.getpid()), process_cpu(running.pid)
        assert child_alone > 0
        assert family_cpu(os.getpid()) >= alone + child_alone
        assert family_memory_mib(os.getpid()) > family_memory_mib(running.pid) > 0
        running.communicate()

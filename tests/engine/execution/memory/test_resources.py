"""CPU and memory limits as both cgroup versions write them."""

import os

import pytest

from inflight_engine.execution.memory.resources import choose_num_threads, read_resources

GIB = 1 << 30


@pytest.fixture
def tree(tmp_path):
    """A /proc and a /sys/fs/cgroup with 8 GiB available and no limits."""

    def write(path, text):
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    write("proc/meminfo", f"MemTotal: 1 kB\nMemAvailable: {8 * GIB // 1024} kB\n")
    write("proc/self/cgroup", "0::/\n")
    (tmp_path / "cgroup").mkdir()
    write.read = lambda: read_resources(tmp_path / "proc", tmp_path / "cgroup")
    return write


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def test_without_limits_the_machine_counts(tree):
    assert (tree.read().cpus, tree.read().memory) == (8, 8 * GIB)


def test_version_2_limits(tree):
    tree("cgroup/cpu.max", "250000 100000\n")
    tree("cgroup/memory.max", f"{3 * GIB}\n")
    tree("cgroup/memory.current", f"{2 * GIB}\n")
    tree("cgroup/memory.stat", f"anon 5\ninactive_file {GIB // 2}\n")
    assert (tree.read().cpus, tree.read().memory) == (2, GIB + GIB // 2)


def test_a_limit_is_this_process_own_where_it_leaves_less_than_the_machine_has(tree):
    assert not tree.read().memory_limited
    tree("cgroup/memory.current", f"{GIB}\n")
    tree("cgroup/memory.max", f"{4 * GIB}\n")
    assert tree.read().memory_limited
    tree("cgroup/memory.max", f"{64 * GIB}\n")
    assert not tree.read().memory_limited


def test_version_2_max_means_none(tree):
    tree("cgroup/cpu.max", "max 100000\n")
    tree("cgroup/memory.max", "max\n")
    tree("cgroup/memory.current", f"{GIB}\n")
    assert (tree.read().cpus, tree.read().memory) == (8, 8 * GIB)


def test_a_parents_limit_counts(tree):
    tree("proc/self/cgroup", "0::/kubepods/pod1/box\n")
    tree("cgroup/kubepods/pod1/box/cpu.max", "max 100000\n")
    tree("cgroup/kubepods/pod1/cpu.max", "100000 100000\n")
    assert tree.read().cpus == 1


def test_version_1_limits(tree):
    tree("proc/self/cgroup", "5:cpu,cpuacct:/box\n4:memory:/box\n1:name=systemd:/\n")
    tree("cgroup/cpu/box/cpu.cfs_quota_us", "300000\n")
    tree("cgroup/cpu/box/cpu.cfs_period_us", "100000\n")
    tree("cgroup/memory/box/memory.limit_in_bytes", f"{2 * GIB}\n")
    tree("cgroup/memory/box/memory.usage_in_bytes", f"{GIB}\n")
    tree("cgroup/memory/box/memory.stat", "total_inactive_file 4096\n")
    assert (tree.read().cpus, tree.read().memory) == (3, GIB + 4096)


def test_version_1_without_limits(tree):
    tree("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/\n")
    tree("cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    tree("cgroup/cpu/cpu.cfs_period_us", "100000\n")
    tree("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    tree("cgroup/memory/memory.usage_in_bytes", f"{GIB}\n")
    assert (tree.read().cpus, tree.read().memory) == (8, 8 * GIB)


def test_less_than_one_cpu_is_one_thread(tree):
    tree("cgroup/cpu.max", "50000 100000\n")
    assert tree.read().cpus == 1


def test_this_machine_has_some():
    found = read_resources()
    assert found.cpus >= 1
    assert found.memory > 0


@pytest.mark.parametrize(("cpus", "threads"), [(1, 1), (2, 2), (4, 4), (5, 4), (64, 63)])
def test_every_cpu_computes_but_one_of_many(cpus, threads):
    assert choose_num_threads(None, cpus) == threads


def test_as_many_threads_as_asked_for_where_there_are_cpus_for_them():
    assert [choose_num_threads(asked, 8) for asked in (1, 7, 8)] == [1, 7, 8]
    for asked in (0, 9):
        with pytest.raises(ValueError, match=f"num_threads must be between 1 and 8, .* not {asked}"):
            choose_num_threads(asked, 8)

"""NUMA nodes of this process, and interleaving of its memory over them."""

import errno
import subprocess
import sys

import pytest

from inflight_engine.execution.memory.numa import interleave_memory, nodes_of, numbers


@pytest.fixture
def machine(tmp_path):
    """Two nodes of four CPUs and one of memory alone."""
    for node, cpus in enumerate(["0-3", "4-5,8-9", ""]):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path


def nodes(machine, cpus, allowed=None):
    if allowed is not None:
        (machine / "proc/self/status").write_text(f"Name:\tx\nMems_allowed_list:\t{allowed}\n")
    return nodes_of(cpus, machine / "proc", machine / "sys")


def test_the_kernels_lists_are_read():
    assert numbers("0-3,8\n") == {0, 1, 2, 3, 8}
    assert numbers("\n") == set()


def test_nodes_are_those_of_the_cpus_that_may_be_used(machine):
    assert nodes(machine, {1, 8}) == {0, 1}
    assert nodes(machine, {4, 9}) == {1}


def test_a_node_whose_memory_the_cpuset_forbids_is_left_out(machine):
    assert nodes(machine, {1, 8}, allowed="0") == {0}
    assert nodes(machine, {1, 8}, allowed="0-2") == {0, 1}


def test_a_kernel_that_says_nothing_has_no_nodes(tmp_path):
    assert nodes_of({0}, tmp_path, tmp_path) == set()


@pytest.mark.parametrize("one_or_none", [set(), {1}])
def test_one_node_needs_nothing(one_or_none):
    assert not interleave_memory(one_or_none, lambda _: pytest.fail("no policy is needed"))


def test_memory_is_interleaved_over_several():
    asked = []
    assert interleave_memory({0, 1}, lambda found: asked.append(found) or 0)
    assert asked == [{0, 1}]


def test_a_container_that_forbids_it_runs_all_the_same(caplog):
    assert not interleave_memory({0, 1}, lambda _: errno.EPERM)
    assert "Operation not permitted" in caplog.text


def test_the_system_call_takes_the_mask():
    """The call succeeds on the present node, or the container refuses it: the arguments are right."""
    code = "from inflight_engine.execution.memory.numa import _set_policy; print(_set_policy({0}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    assert int(done.stdout) in (0, errno.EPERM, errno.ENOSYS)

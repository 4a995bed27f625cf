"""Control groups, of both versions, in a folder that looks like the kernel's."""

from contextlib import contextmanager, suppress

import pytest

from tools.measure.cpu_share import cpu_group


@contextmanager
def use(hierarchy):
    """The files of a real group vanish with it; those of this one keep its folder."""
    with suppress(OSError), cpu_group("one", hierarchy) as group:
        yield group


def test_version_1_gets_a_period_and_a_quota_where_the_controller_is(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    with use(tmp_path) as group:
        group.join(42)
        group.limit(0.4)
    assert {file.name: file.read_text() for file in (tmp_path / "cpu" / "one").iterdir()} == {
        "cgroup.procs": "42",
        "cpu.cfs_period_us": "10000",
        "cpu.cfs_quota_us": "4000",
    }


def test_version_2_gets_one_line(tmp_path):
    (tmp_path / "cgroup.subtree_control").write_text("")
    with use(tmp_path) as group:
        group.limit(1.5)
    assert (tmp_path / "one" / "cpu.max").read_text() == "15000 10000"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"


def test_without_rights_the_error_says_what_is_needed(tmp_path):
    with pytest.raises(RuntimeError, match="needs root"), cpu_group("one", tmp_path / "missing"):
        pass

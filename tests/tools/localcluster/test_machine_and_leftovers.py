"""Abilities of the machine, and leftovers of the local cluster on it."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.localcluster import layout, machine, probe
from tools.localcluster.errors import ClusterError
from tools.localcluster.images.image_store import CONTAINERD_SOCKET
from tools.localcluster.layout import Layout
from tools.localcluster.node import cgroups, host, leftovers, own_node, preflight
from tools.localcluster.node.addresses import CANDIDATES
from tools.localcluster.node.preflight import GIGABYTE, MEMORY_GB, Facts
from tools.localcluster.programs import packages

GOOD = Facts(
    is_linux=True,
    is_root=True,
    namespace_problem=None,
    free_disk_bytes=100 * GIGABYTE,
    available_memory_bytes=16 * GIGABYTE,
    node_runs=False,
    other_owner=None,
    foreign_pods=False,
)


def test_a_good_machine_has_no_problem():
    assert preflight.problem(GOOD, 30, Path("/cache")) is None


def test_a_node_that_runs_needs_no_more_memory():
    assert (
        preflight.problem(dataclasses.replace(GOOD, available_memory_bytes=0, node_runs=True), 30, Path("/c")) is None
    )


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"is_linux": False}, "Linux"),
        ({"is_root": False}, "sudo"),
        ({"namespace_problem": "Operation not permitted"}, "Operation not permitted.*privileged"),
        ({"other_owner": "/other/cache"}, "/other/cache.*INFLIGHT_CACHE"),
        ({"foreign_pods": True}, "another kubelet"),
        ({"free_disk_bytes": 29 * GIGABYTE}, "30 GB of free disk.*29 GB are free at /cache.*INFLIGHT_CACHE"),
        ({"available_memory_bytes": (MEMORY_GB - 1) * GIGABYTE}, "GB of memory"),
    ],
)
def test_each_obstacle_is_one_sentence_with_what_to_do(change, advice):
    found = preflight.problem(dataclasses.replace(GOOD, **change), 30, Path("/cache"))
    assert found
    assert "\n" not in found
    assert re.search(advice, found)


def test_another_system_than_linux_is_told_so_without_a_look_at_its_files(tmp_path, monkeypatch):
    class Uname:
        sysname = "Darwin"

    monkeypatch.setattr(preflight.os, "uname", Uname)
    monkeypatch.setattr(preflight.machine, "available_memory", lambda: pytest.fail("there is no /proc/meminfo"))
    with pytest.raises(ClusterError, match="needs Linux"):
        preflight.check(Layout(tmp_path), node_runs=False)


@pytest.fixture
def pods_run(tmp_path, monkeypatch):
    """A machine on which pods run; what /run says about whose they are is in the folder returned."""
    monkeypatch.setattr(preflight.cgroups, "processes_in", lambda groups: {12})
    monkeypatch.setattr(preflight.machine, "is_root", lambda: True)
    monkeypatch.setattr(preflight, "RUNTIME", tmp_path / "run")
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_another_kubelets_pods_are_not_taken_down(pods_run, tmp_path):
    with pytest.raises(ClusterError, match="another kubelet"):
        preflight.check_may_take_down(Layout(tmp_path / "cache"))


def test_a_node_whose_cache_folder_was_deleted_is_still_taken_down(pods_run, tmp_path):
    (pods_run / "owner").write_text(f"{tmp_path / 'cache'}\n")
    preflight.check_may_take_down(Layout(tmp_path / "cache"))
    with pytest.raises(ClusterError, match="belongs to the cache folder"):
        preflight.check_may_take_down(Layout(tmp_path / "other"))


@pytest.mark.skipif(not machine.is_root(), reason="needs root")
def test_a_machine_without_ip_yet_can_still_have_namespaces(tmp_path, monkeypatch):
    for name in ("unshare", "mount", "sh"):
        (tmp_path / name).symlink_to(shutil.which(name))
    if machine.namespace_problem():
        pytest.skip("this machine cannot make namespaces")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.namespace_problem() is None


def test_memory_sizes_are_read_in_bytes():
    assert machine.parse_meminfo("MemTotal: 10 kB\nHugePages_Total: 3\n") == {"MemTotal": 10240, "HugePages_Total": 3}


def test_free_disk_is_asked_of_the_nearest_folder_that_exists(tmp_path):
    assert machine.free_disk(tmp_path / "not" / "yet") > 0


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "/home/u/.cache/inflight"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/inflight"),
        ({"XDG_CACHE_HOME": "/x", "INFLIGHT_CACHE": "/own"}, "/own"),
        ({"INFLIGHT_CACHE": ""}, "/home/u/.cache/inflight"),
    ],
)
def test_the_cache_folder_is_the_users_choice_first(environment, expected):
    assert layout.cache_root(environment, Path("/home/u")) == Path(expected)


def test_what_outlives_a_cluster_is_not_inside_its_folder():
    places = Layout(Path("/c"))
    for kept in (places.store, places.bin, places.host_changes, places.logs):
        assert not kept.is_relative_to(places.cluster)


def test_only_missing_programs_are_installed():
    assert packages.missing_packages({"runc": True, "nft": False, "mmdebstrap": False}) == ["mmdebstrap", "nftables"]
    assert packages.missing_packages({"runc": True}) == []


def test_mounts_below_our_folders_are_found_innermost_first():
    mountinfo = (
        "22 1 8:1 / / rw - ext4 /dev/a rw\n"
        "30 22 0:5 / /run/inflight/a rw - overlay overlay rw\n"
        "31 30 0:6 / /run/inflight/a/b\\040c rw - tmpfs tmpfs rw\n"
        "32 22 0:7 / /run/inflight-other rw - tmpfs tmpfs rw\n"
        "33 22 0:8 / /c/kubelet/pods/x rw - tmpfs tmpfs rw\n"
    )
    found = host.mounts_below(mountinfo, [Path("/run/inflight"), Path("/c")])
    assert found == ["/c/kubelet/pods/x", "/run/inflight/a/b c", "/run/inflight/a"]


def test_only_traffic_that_leaves_the_cluster_is_masqueraded():
    script = host.masquerade_table(CANDIDATES[0])
    assert "ip saddr 10.244.0.0/24 ip daddr != { 10.244.0.0/24, 10.96.0.0/16, 224.0.0.0/4 } masquerade" in script
    assert script.index("delete table") < script.index("chain postrouting")


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        ("-P INPUT ACCEPT\n-P FORWARD ACCEPT\n", []),
        ("-P INPUT ACCEPT\n-P FORWARD DROP\n", [["FORWARD", "-s"], ["FORWARD", "-d"]]),
        ("-P INPUT DROP\n-P FORWARD ACCEPT\n", [["INPUT", "-s"]]),
        ("", []),
    ],
)
def test_pods_are_let_through_only_firewalls_that_drop_by_default(listing, expected):
    assert [rule[:2] for rule in host.firewall_rules(listing, CANDIDATES[0])] == expected


LINKS = f"""
set -eu
mount -t sysfs sysfs /sys
ip link add pod0 type veth peer name inside0
ip address add {CANDIDATES[0].node_address}/32 dev pod0
ip link add other0 type veth peer name other1
ip address add 192.0.2.1/32 dev other0
"""


@pytest.mark.skipif(not machine.is_root() or not packages.find("ip"), reason="needs root and iproute2")
def test_links_of_pods_that_nobody_tore_down_go_with_the_cluster_and_no_others():
    if machine.namespace_problem():
        pytest.skip("this machine cannot make namespaces")
    take_down = (
        "import pathlib; from tools.localcluster import layout; from tools.localcluster.node import host\n"
        "from tools.localcluster.node.addresses import CANDIDATES\n"
        "host.tear_down(CANDIDATES[0], layout.Layout(pathlib.Path('/nonexistent')))"
    )
    script = f"{LINKS}\n{shlex.quote(sys.executable)} -c {shlex.quote(take_down)}\nip -brief link show type veth"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        cwd=layout.REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(line.partition("@")[0] for line in done.stdout.splitlines()) == ["other0", "other1"]


def test_shims_of_another_containerd_are_left_alone():
    ours = ("/b/containerd-shim-runc-v2", "-namespace", "k8s.io", "-address", str(CONTAINERD_SOCKET))
    assert leftovers.is_own_shim(ours)
    assert not leftovers.is_own_shim((*ours[:-1], "/run/containerd/containerd.sock"))
    assert not leftovers.is_own_shim(("/usr/bin/grep", *ours))


def test_processes_of_pods_are_found_in_both_kinds_of_cgroup_hierarchy(tmp_path):
    for group, pids in {"memory/kubepods/pod1/c": "12\n13\n", "cpu/kubepods": "", "memory/other": "99\n"}.items():
        (tmp_path / group).mkdir(parents=True)
        (tmp_path / group / "cgroup.procs").write_text(pids)
    (tmp_path / "memory" / "kubepods" / "cgroup.procs").write_text("")
    groups = cgroups.own_groups(tmp_path)
    assert groups == [tmp_path / "cpu" / "kubepods", tmp_path / "memory" / "kubepods"]
    assert cgroups.processes_in(groups) == {12, 13}
    assert cgroups.own_groups(tmp_path / "no hierarchy") == []
    (tmp_path / "kubepods").mkdir()
    (tmp_path / "kubepods" / "cgroup.procs").write_text("7\n")
    assert tmp_path / "kubepods" in cgroups.own_groups(tmp_path)


def test_a_pod_that_ends_while_the_groups_are_read_is_passed_over(tmp_path):
    (tmp_path / "kubepods" / "pod1").mkdir(parents=True)
    folders = cgroups.folders_of([tmp_path / "kubepods", tmp_path / "gone"])
    assert next(folders) == tmp_path / "kubepods"
    (tmp_path / "kubepods" / "pod1").rmdir()
    assert list(folders) == []


def test_kernel_settings_are_put_back_only_in_the_boot_that_changed_them(tmp_path):
    places = Layout(tmp_path)
    host.save_settings(places)
    saved = json.loads(places.host_changes.read_text())
    assert saved["boot"] == machine.boot_id()
    assert saved["settings"]["vm/overcommit_memory"].strip().isdigit()
    stale = {"boot": "an earlier boot", "settings": {"kernel/panic": "not a value the kernel takes"}}
    places.host_changes.write_text(json.dumps(stale))
    host.restore_settings(places)
    assert not places.host_changes.exists()


def test_the_first_change_of_a_boot_is_the_one_remembered(tmp_path):
    places = Layout(tmp_path)
    places.host_changes.parent.mkdir(parents=True)
    first = {"boot": machine.boot_id(), "settings": {"kernel/panic": "42"}}
    places.host_changes.write_text(json.dumps(first))
    host.save_settings(places)
    assert json.loads(places.host_changes.read_text()) == first


def heartbeat(status, seconds):
    moment = datetime.datetime(2026, 1, 1, 12, 0, seconds, tzinfo=datetime.UTC)
    shown = moment.isoformat().replace("+00:00", "Z")
    return {"status": {"conditions": [{"type": "Ready", "status": status, "lastHeartbeatTime": shown}]}}


def test_a_node_is_ready_only_by_a_report_of_the_kubelet_that_runs_now():
    since = datetime.datetime(2026, 1, 1, 12, 0, 30, tzinfo=datetime.UTC)
    assert own_node.is_ready(heartbeat("True", 30), since)
    assert not own_node.is_ready(heartbeat("True", 29), since)
    assert not own_node.is_ready(heartbeat("False", 31), since)
    assert not own_node.is_ready({"metadata": {}}, since)


def test_a_dns_question_is_encoded_as_rfc_1035_says():
    message = probe.encode_question(0x1234, "ab.c.")
    assert message == b"\x12\x34\x01\x00\x00\x01\0\0\0\0\0\0\x02ab\x01c\0\0\x01\0\x01"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"\x12\x34\x81\x80\x00\x01\x00\x01\0\0\0\0", True),
        (b"\x12\x34\x81\x83\x00\x01\x00\x00\0\0\0\0", False),  # no such name
        (b"\x12\x34\x81\x80\x00\x01\x00\x00\0\0\0\0", False),  # no record
        (b"\x12\x35\x81\x80\x00\x01\x00\x01\0\0\0\0", False),  # another question's
        (b"\x12", False),
    ],
)
def test_only_an_answer_to_this_question_counts(header, expected):
    assert probe.is_answer(header, 0x1234) is expected

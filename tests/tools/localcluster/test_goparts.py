"""Parts that are built from Go: their arguments, and when they are built anew."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from tools.localcluster import layout
from tools.localcluster.programs import goparts, gotoolchain
from tools.localcluster.programs.goparts import (
    ACTIONLINT,
    CRANE,
    GCS,
    KSTATUS,
    KWOK,
    NODE_PARTS,
    PROMTOOL,
    REGISTRY,
    Part,
)

PARTS = (*NODE_PARTS, PROMTOOL, KWOK, ACTIONLINT, REGISTRY, CRANE, KSTATUS, GCS)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_is_pinned_by_go_mod_and_go_sum(part):
    assert (part.folder / "go.mod").is_file()
    assert (part.folder / "go.sum").is_file()
    assert len(part.packages) == 1 or len(part.packages) == len(part.binaries)


@pytest.mark.parametrize("part", [part for part in PARTS if part.packages != (".",)], ids=lambda p: p.name)
def test_every_package_from_a_module_is_a_tool_of_its_go_mod(part):
    go_mod = (part.folder / "go.mod").read_text()
    for package in part.packages:
        assert package in go_mod


def test_the_version_stamped_into_kubernetes_is_the_one_required():
    go_mod = "module x\n\nrequire (\n\tk8s.io/kubernetes v1.36.3\n\tk8s.io/api v0.36.3 // indirect\n)\n"
    flags = goparts.linker_flags(goparts.APISERVER, go_mod)
    assert "-X k8s.io/component-base/version.gitVersion=v1.36.3" in flags
    assert "-X k8s.io/component-base/version.gitMajor=1 " in flags
    assert flags.endswith("-X k8s.io/component-base/version.gitMinor=36")


def test_parts_without_a_version_are_only_stripped():
    assert goparts.linker_flags(goparts.ETCD, "") == "-s -w"


def test_a_requirement_on_one_line_is_found():
    assert goparts.required_version("require k8s.io/kubernetes v1.2.3\n", "k8s.io/kubernetes") == "v1.2.3"


def test_a_module_that_is_not_required_is_an_error():
    with pytest.raises(ValueError, match="requires no example"):
        goparts.required_version("module x\n", "example")


def test_a_single_package_gets_its_file_name_and_several_a_folder(tmp_path):
    assert str(tmp_path / "etcd") in goparts.build_arguments(goparts.ETCD, "", tmp_path)
    assert f"{tmp_path}/" in goparts.build_arguments(goparts.CONTAINERD, "", tmp_path)


def test_promtool_is_built_without_the_clouds_and_other_parts_as_they_come(tmp_path):
    arguments = goparts.build_arguments(PROMTOOL, "", tmp_path)
    assert arguments[arguments.index("-tags") + 1] == "remove_all_sd"
    assert not any(
        "-tags" in goparts.build_arguments(part, (part.folder / "go.mod").read_text(), tmp_path) for part in NODE_PARTS
    )


def test_the_fingerprint_changes_with_modules_sums_sources_and_packages(tmp_path, monkeypatch):
    shutil.copytree(layout.GO_MODULES / "coredns", tmp_path / "coredns")
    monkeypatch.setattr(goparts, "GO_MODULES", tmp_path)
    part = Part("coredns", "coredns", (".",))
    seen = {goparts.fingerprint(part)}
    assert goparts.fingerprint(part) in seen
    for name in ("go.mod", "go.sum", "main.go"):
        with (tmp_path / "coredns" / name).open("a") as file:
            file.write("\n// more\n")
        fingerprint = goparts.fingerprint(part)
        assert fingerprint not in seen
        seen.add(fingerprint)
    assert goparts.fingerprint(dataclasses.replace(part, packages=("./other",))) not in seen
    assert goparts.fingerprint(dataclasses.replace(part, tags=("other",))) not in seen


def test_files_that_are_not_built_do_not_change_the_fingerprint(tmp_path, monkeypatch):
    shutil.copytree(layout.GO_MODULES / "pause", tmp_path / "pause")
    monkeypatch.setattr(goparts, "GO_MODULES", tmp_path)
    before = goparts.fingerprint(goparts.PAUSE)
    (tmp_path / "pause" / "notes.txt").write_text("nothing")
    assert goparts.fingerprint(goparts.PAUSE) == before


def test_the_newest_go_line_decides_which_go_is_needed():
    assert gotoolchain.minimum_go(["go 1.25.0\n", "module x\n\ngo 1.26.8\n", "go 1.26\n"]) == (1, 26, 8)

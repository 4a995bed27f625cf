"""The build of the CPU kernels, with compilers that only say what they are asked to do."""

import importlib.util
import os
import platform
import time
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[3] / "engine_image" / "kernels"


@pytest.fixture
def build(tmp_path, monkeypatch):
    """The build program, on a machine whose only program is `tool`: it writes what comes after -o."""
    spec = importlib.util.spec_from_file_location("kernels_build", KERNELS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    programs = tmp_path / "bin"
    programs.mkdir()
    tool = programs / "tool"
    tool.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho made > "$2"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("CXX", raising=False)
    return module


def test_without_a_compiler_it_says_so(build):
    with pytest.raises(build.NoCompilerError, match="no C\\+\\+ compiler"):
        build.compiler()


def test_the_compiler_that_is_asked_for_is_taken_with_its_options_or_refused(build, monkeypatch):
    monkeypatch.setenv("CXX", "tool --launched g++")
    assert build.compiler() == ["tool", "--launched", "g++"]
    monkeypatch.setenv("CXX", "missing-g++ -m64")
    with pytest.raises(build.NoCompilerError, match="CXX is missing-g\\+\\+"):
        build.compiler()


def test_what_is_newer_than_the_sources_is_not_made_again(build, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "tool")
    made = build.build(tmp_path / "lib")
    assert {path.name for path in made} >= {"libinflight-generic.so"}
    assert all(path.read_text() == "made\n" for path in made)
    assert sorted((tmp_path / "lib").iterdir()) == sorted(made)
    assert build.build(tmp_path / "lib") == []
    os.utime(made[0], (0, time.time() - 10**9))
    assert build.build(tmp_path / "lib") == [made[0]]


def test_a_variant_shares_the_objects_of_sources_that_do_not_know_what_it_adds(build):
    known = {path.stem: build.text(path) for path in KERNELS.glob("*.cpp")}
    assert build.compiled_for("amx", known["gemm_tiles"]) == "amx"
    assert build.compiled_for("amx", known["team"]) == "amx"
    assert build.compiled_for("amx", known["sample"]) == "avx512"
    assert build.compiled_for("avx512bf16", known["gemm_vectors"]) == "avx512bf16"
    assert build.compiled_for("avx512bf16", known["sample"]) == "avx512"
    assert build.compiled_for("avx2", known["sample"]) == "avx2"
    assert build.compiled_for("amxemulated", known["sample"]) == "amxemulated"
    assert build.compiled_for("bf16mmla", known["gemm_mmla"]) == "bf16mmla"
    assert build.compiled_for("bf16mmla", known["sample"]) == "generic"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="variants of x86")
def test_variants_for_tests_are_made_only_where_that_is_asked_for(build, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "tool")
    of_image = {path.stem.removeprefix("libinflight-") for path in build.build(tmp_path)}
    assert of_image == set(build.X86_VARIANTS)
    assert [path.stem for path in build.build(tmp_path, tests=True)] == ["libinflight-amxemulated"]


def test_another_machine_s_variants_are_made_by_a_compiler_for_it(build, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "tool")
    made = {path.stem.removeprefix("libinflight-") for path in build.build(tmp_path, machine="aarch64")}
    assert made == set(build.ARM_VARIANTS)

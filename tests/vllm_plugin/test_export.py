"""The folder that the init container of a vLLM pod fills."""

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from inflight_vllm.export import export


@pytest.fixture
def folder(tmp_path):
    export(tmp_path / "plugin")
    return tmp_path / "plugin"


def test_what_is_exported_imports_without_the_repository(folder):
    modules = "inflight_vllm, inflight_contract.tenants, inflight_fit.online, inflight_fit.output_lengths"
    packages = str(Path(numpy.__file__).parent.parent)  # without its .pth files, which name the repository
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import {modules}; print(inflight_vllm.__file__)"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{folder}:{packages}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(folder))


def test_nothing_but_python_is_exported_and_no_program(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".py"}
    assert not {path.name for path in folder.iterdir()} & {"inflight_engine", "inflight_operator", "inflight_gateway"}


def test_an_export_replaces_what_is_there(folder):
    (folder / "inflight_vllm" / "export.py").write_text("old")
    export(folder)
    assert (folder / "inflight_vllm" / "export.py").read_text() != "old"

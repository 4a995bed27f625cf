"""The Triton kernels with Triton 3.6, which machines with torch 2.11 have: they compile for Hopper, and the interpreter
computes as plain torch does. The version lies in a folder of its own, in front of the environment's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.localcluster.layout import current

HERE = Path(__file__).parent
REQUIREMENTS = ("triton==3.6.0", "numpy==2.3.5")
"""With numpy 2.4 the interpreter of Triton 3.6 fails: it makes a number of an array of one element."""
COMPILED = ("test_triton_ops.py", "test_triton_variants.py", "attention/test_triton_compiles.py")
INTERPRETED = ("interpreted_ops.py", "sampling/interpreted_gumbel.py", "attention/interpreted_triton.py")


@pytest.fixture(scope="module")
def packages():
    folder = current().root / "triton-3.6"
    stamp = folder / "installed.txt"
    if not stamp.exists() or stamp.read_text() != str(REQUIREMENTS):
        uv = Path(sys.executable).parent / "uv"
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--no-deps", "--target", folder]
        subprocess.run([*command, *REQUIREMENTS], check=True, timeout=800)
        stamp.write_text(str(REQUIREMENTS))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "chosen", "options"),
    [
        (COMPILED, "not slow and not interpreter and not linear and (90 or sampling or specialised)", {}),
        (INTERPRETED, "ops or gumbel or split or padded_rows or fp8_by_their", {"TRITON_INTERPRET": "1"}),
    ],
    ids=["compiled", "interpreted"],
)
def test_with_triton_3_6(packages, files, chosen, options):
    plugins = ["-p", "no:cacheprovider", "-p", "tests.engine.execution.quick_interpreter"]
    code = "import sys, pytest, triton; assert triton.__version__ == '3.6.0'; sys.exit(pytest.main(sys.argv[1:]))"
    result = subprocess.run(
        [sys.executable, "-c", code, "-x", "-k", chosen, *plugins, *(str(HERE / file) for file in files)],
        env=os.environ | options | {"PYTHONPATH": f"{packages}:{os.environ.get('PYTHONPATH', '')}"},
        cwd=HERE.parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
    )
    assert result.returncode == 0, result.stdout

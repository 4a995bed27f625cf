"""The Triton kernels of attention, interpreted in a process of its own: whether Triton interprets is settled when it is
imported."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_in_a_process_of_its_own():
    paths = [str(HERE / file) for file in ("interpreted_triton.py", "interpreted_flash.py")]
    plugins = ["-p", "no:cacheprovider", "-p", "tests.engine.execution.quick_interpreter"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *paths, "-x", *plugins],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=HERE.parents[3],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0, result.stdout

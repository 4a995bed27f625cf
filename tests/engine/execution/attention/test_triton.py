"""The Triton kernels, each way in a process of its own: whether Triton interprets is settled when it is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("files", "interpreted", "chosen"),
    [
        (["interpreted_triton.py", "interpreted_flash.py"], "1", "not slow"),
        (["compiled_triton.py"], "0", "not slow"),
        pytest.param(["compiled_triton.py"], "0", "slow", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_in_a_process_of_its_own(files, interpreted, chosen):
    paths = [str(HERE / file) for file in files]
    command = [sys.executable, "-m", "pytest", *paths, "-x", "-p", "no:cacheprovider", "-m", chosen]
    environment = os.environ | {"TRITON_INTERPRET": interpreted}
    result = subprocess.run(
        command, env=environment, cwd=HERE.parents[3], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert result.returncode == 0, result.stdout

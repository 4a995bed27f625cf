"""How the CPU threads wait is settled before torch is there, and can be set from outside."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_told_otherwise(given, expected):
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"} | {"OMP_DISPLAY_ENV": "true"}
    if given:
        environment["OMP_WAIT_POLICY"] = given
    shown = subprocess.run(
        [sys.executable, "-c", "import inflight_engine.execution.build"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    ).stderr
    assert f"OMP_WAIT_POLICY = '{expected}'" in shown

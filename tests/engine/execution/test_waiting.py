"""How the CPU threads of a process that computes wait is settled before torch is there. That it can be set from outside
is in `test_torch_environment`."""

import os
import socket
import subprocess
import sys

import msgspec
import pytest

from inflight_settings.engine import EngineConfig


def shown_by(module, arguments, **options):
    """Settings that the OpenMP library prints when a process starts."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"} | {
        "OMP_DISPLAY_ENV": "true",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=120, **options
    ).stderr


@pytest.mark.slow
def test_threads_of_the_engine_process_sleep_while_they_wait():
    ours, theirs = socket.socketpair()
    with ours, theirs:  # it ends because no configuration comes
        shown = shown_by("inflight_engine.engine_process", [str(theirs.fileno())], pass_fds=[theirs.fileno()])
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in shown


@pytest.mark.slow
def test_threads_of_a_tensor_parallel_worker_sleep_while_they_wait():
    config = msgspec.json.encode(EngineConfig("model", device="cuda")).decode()
    lifeline, ours = os.pipe()
    shown = shown_by(
        "inflight_engine.execution.parallel.worker",
        ["1", "0", str(lifeline), "there", config],
        pass_fds=[lifeline],
    )
    os.close(lifeline)
    os.close(ours)
    assert "torch finds no GPU" in shown
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in shown

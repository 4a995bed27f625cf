"""The scheduler runs in the simulator and in a replay: it must not bring the engine's libraries along."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["inflight_engine.scheduling.scheduler", "inflight_engine.cache.block_pool"])
def test_scheduler_and_cache_load_no_torch_and_no_server(module):
    loaded = subprocess.run(
        [sys.executable, "-c", f"import {module}, sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert module in loaded
    assert not {"torch", "transformers", "fastapi", "asyncio", "socket"} & set(loaded)

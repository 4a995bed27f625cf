import gc
import os
import sys

import pytest
from hypothesis import settings

# Before anything imports torch: spinning OpenMP threads slow a busy machine down many times over.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Where bytecode may not be written, each of the hundreds of processes of a run compiles all that it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# The same examples each time, so that a change is judged by what it changes; `make fuzz` looks for new ones. How long
# an example takes says how busy the machine is, nothing else.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Freezes the million objects that are imported for the tests: no later garbage collection goes through them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure():
    """Libraries that look for leaks at the end find none."""
    gc.unfreeze()

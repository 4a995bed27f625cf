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


class Failures:
    """Names each failure at once: a run of all tests takes twenty minutes, and tells them at its end."""

    def __init__(self, config):
        self._terminal = config.pluginmanager.get_plugin("terminalreporter")

    def pytest_runtest_logreport(self, report):
        if report.failed and self._terminal is not None:
            self._terminal.write_line(f"\nFAILED {report.nodeid}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config))


def pytest_unconfigure():
    """Libraries that look for leaks at the end find none."""
    gc.unfreeze()

"""Every compiled variant of the CPU kernels that runs here, one after the other in one process."""

import contextlib
import os

import pytest

from inflight_engine.native.library import EMULATED, ENVIRONMENT, _loaded, is_runnable, library, runnable_variants
from inflight_engine.native.sample import _kernels

VARIANTS = [*runnable_variants(), *([EMULATED] if is_runnable(EMULATED) else [])]
needs_kernels = pytest.mark.skipif(not VARIANTS, reason="no CPU kernels are compiled for this CPU")


@contextlib.contextmanager
def kernels(variant):
    """All that is made in the block uses this variant; `off`: none."""
    before = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = variant
    forget()
    try:
        yield library()
    finally:
        if before is None:
            del os.environ[ENVIRONMENT]
        else:
            os.environ[ENVIRONMENT] = before
        forget()


def forget():
    _loaded.cache_clear()
    _kernels.cache_clear()

import os
import sys

import pytest

from inflight_engine.openmp import let_threads_sleep


def test_a_policy_that_would_come_too_late_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", sys)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with pytest.raises(RuntimeError, match="imported already"):
        let_threads_sleep()


def test_a_policy_from_outside_stays(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    let_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"

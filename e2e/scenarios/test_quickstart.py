"""The quickstart as a stranger does it: its shell and Python blocks run as they stand, in order, in one shell."""

import json
import os
import subprocess

import pytest

from tools.code_blocks import blocks_of
from tools.localcluster import kubectl
from tools.localcluster.layout import REPOSITORY

SECONDS = 240
BLOCKS = [block for block in blocks_of(REPOSITORY / "docs" / "quickstart.md") if block.language in {"bash", "python"}]
"""Blocks to run. Blocks with a note need a registry; tests/docs/test_quickstart.py checks them."""


@pytest.fixture
def without_chat():
    """Removes the service `chat`, before the test and after it."""
    remove = ("-n", "default", "delete", "ifsvc", "chat", "--ignore-not-found", "--wait")
    kubectl(*remove)
    yield
    kubectl(*remove)


@pytest.mark.timeout(SECONDS + 60)
def test_the_blocks_of_the_quickstart_run_in_order(without_chat):
    script = "set -euo pipefail\n" + "\n".join(shell(block) for block in BLOCKS if not block.note)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=REPOSITORY,
        env=stranger(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "condition met" in done.stdout
    answer, end = json.JSONDecoder().raw_decode(done.stdout, done.stdout.index('{"id"'))
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert "Paris" in done.stdout[end:]  # streamed to the Python client
    assert "Ready: 1 of 1 replicas takes requests" in done.stdout
    assert kubectl("-n", "default", "get", "ifsvc", "chat", "--ignore-not-found") == ""


def shell(block):
    """A block as lines of a shell script."""
    return block.text if block.language == "bash" else f"python - <<'PY'\n{block.text}PY\n"


def stranger():
    """The environment of a login shell: nothing of the test session."""
    kept = ("HOME", "USER", "LANG", "TERM", "INFLIGHT_KUBECONFIG", "INFLIGHT_CACHE", "XDG_CACHE_HOME")
    return {name: os.environ[name] for name in (*kept, "PATH") if name in os.environ}

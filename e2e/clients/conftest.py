"""Where servers are, for suites, and engines of a suite's own: variables of the environment that `run` sets. No package
of this repository."""

import contextlib
import os
import shlex
import socket
import subprocess
import time
import urllib.request

import pytest

READY_SECONDS = 120


@pytest.fixture(scope="session")
def url():
    return os.environ["INFLIGHT_URL"]


@pytest.fixture(scope="session")
def model():
    return os.environ["INFLIGHT_MODEL"]


@pytest.fixture(scope="session")
def free_port():
    """Returns a free port, at each call."""

    def free_port():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    return free_port


@pytest.fixture
def serve(tmp_path, free_port):
    """Starts engines, which end with the test: `serve(*flags)` returns the address and the process of one, as soon as
    it is ready."""
    with contextlib.ExitStack() as running:

        def serve(*flags):
            port, log = free_port(), tmp_path / "engine.log"
            command = [*shlex.split(os.environ["INFLIGHT_SERVE"]), "--port", str(port), *flags]
            with log.open("wb") as output:
                process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            running.callback(process.wait)
            running.callback(process.terminate)
            url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + READY_SECONDS
            while True:
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/ready", timeout=2):
                    return url, process
                assert process.poll() is None, log.read_text()[-2000:]
                assert time.monotonic() < deadline, log.read_text()[-2000:]
                time.sleep(0.1)

        yield serve

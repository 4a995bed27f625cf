"""The real command, engine process and model, as users start it; for tests."""

import contextlib
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx

MODEL = "builtin://smollm2"
TOKEN = "test-token"
START_SECONDS = 240
CERTIFICATES = ssl.create_default_context()
"""Read once: else httpx reads all of them for each question, 30 ms of CPU while a server starts on the same cores."""


class RealServer:
    """A running `inflight-engine serve`; `url` is its address, `log` its standard error."""

    def __init__(self, folder: Path, *flags: str, model: str = MODEL):
        self.log = folder / "stderr"
        self._stderr = self.log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "inflight_engine.cli", "serve", model, "--host", "127.0.0.1", "--port", "0", *flags],
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            env={**os.environ, "INFLIGHT_ADMIN_TOKEN": TOKEN},
        )
        port = self.wait_for(lambda: re.search(r"listening on .* port (\d+)", self.log.read_text()))[1]
        self.url = f"http://127.0.0.1:{port}"

    def wait_ready(self):
        self.wait_for(lambda: self.status("/ready") == 200)
        return self

    def status(self, path: str) -> int | None:
        """Returns the status of a path; None: the server does not answer."""
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(self.url + path, timeout=5, verify=CERTIFICATES).status_code
        return None

    def metrics(self) -> dict[str, float]:
        """Values of the samples whose only label is the model's name."""
        text = httpx.get(self.url + "/metrics", timeout=30, verify=CERTIFICATES).text
        return {m[1]: float(m[2]) for m in re.finditer(r'^([\w:]+)\{model_name="[^"]*"\} (\S+)$', text, re.M)}

    def engine_pid(self) -> int:
        """Returns the oldest engine process: younger ones are spares."""
        return self.wait_for(self._engines)[0]

    def spare_pid(self, beside: int) -> int:
        """Returns the spare beside an engine process, as soon as it has imported its modules."""

        def imported():
            return [pid for pid in self.spares(beside) if _has_imported(pid)]

        return self.wait_for(imported)[0]

    def spares(self, beside: int) -> list[int]:
        """Returns the engine processes but this one."""
        return [pid for pid in self._engines() if pid != beside]

    def _engines(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        found = ((each, Path(f"/proc/{each}/cmdline").read_text()) for each in children)
        return [int(pid) for pid, command in found if "engine_process" in command]

    def admin_port(self) -> int:
        return int(re.search(r"admin calls on .* port (\d+)", self.log.read_text())[1])

    def last_line(self) -> str:
        return self.log.read_text().splitlines()[-1]

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self._stderr.close()

    def wait_for(self, condition):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended: {self.log.read_text()}")
            if found := condition():
                return found
            time.sleep(0.05)
        raise AssertionError(f"not within {START_SECONDS} s: {self.log.read_text()}")


def _has_imported(pid: int) -> bool:
    """Returns whether the thread of a spare that imports is over. Until then, it gets more than the lowest priority,
    where that is permitted: other tests keep the CPUs busy."""
    ordinary, patient = os.getpriority(os.PRIO_PROCESS, pid), False
    for each in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(PermissionError, ProcessLookupError):
            if os.getpriority(os.PRIO_PROCESS, int(each.name)) > ordinary:
                patient = True
                os.setpriority(os.PRIO_PROCESS, int(each.name), ordinary + 1)
    return not patient and "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()

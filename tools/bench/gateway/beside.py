"""The gateway of another version of this repository, started by its own programs and its own `tools.bench.gateway`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.bench.gateway.stack import Gateway, Object

_PACKAGES = ("", "common", "operator", "engine_image", "simulator")

_SERVE = """
import json, sys
from pathlib import Path
from tools.bench.gateway.stack import gateway
with gateway(Path(sys.argv[1]), json.loads(sys.argv[2])) as running:
    print(json.dumps({"port": running.port, "http_port": running.http_port, "pids": running.pids}), flush=True)
    sys.stdin.read()
"""

_PICKS = """
import json, sys
from tools.bench.gateway import overhead
overhead.PICK_REPLICAS = json.loads(sys.argv[1])
print(json.dumps(list(overhead.pick_microseconds().items())))
"""


class Tree:
    """Another checkout. Its programs run with its own Python where it has a `.venv`, else with this one.

    Args:
        folder: its root.
    """

    def __init__(self, folder: Path) -> None:
        self.name = folder.resolve().name
        self._folder = folder.resolve()

    @contextmanager
    def gateway(self, folder: Path, services: Sequence[Object]) -> Iterator[Gateway]:
        """A running gateway in front of `services`; its files are in `folder`.

        Raises:
            RuntimeError: it did not become ready.
        """
        with self._run(_SERVE, str(folder), json.dumps(list(services))) as running:
            assert running.stdin is not None
            assert running.stdout is not None
            line = running.stdout.readline()
            if not line:
                raise RuntimeError(f"the gateway of {self._folder} did not start")
            try:
                yield Gateway(**json.loads(line))
            finally:
                running.stdin.close()
                running.wait()

    def pick_microseconds(self, replicas: Sequence[int]) -> dict[int, float]:
        """Returns the time of a pick by the number of replicas, in microseconds."""
        with self._run(_PICKS, json.dumps(list(replicas))) as running:
            out, _ = running.communicate()
        if running.returncode:
            raise RuntimeError(f"the picks of {self._folder} could not be measured")
        return dict(json.loads(out))

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        own = self._folder / ".venv" / "bin" / "python"
        path = os.pathsep.join(str(self._folder / each) for each in _PACKAGES)
        return subprocess.Popen(
            [str(own if own.exists() else sys.executable), "-c", program, *arguments],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

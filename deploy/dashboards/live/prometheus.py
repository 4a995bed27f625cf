"""A local Prometheus process on loopback, and its HTTP API."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tools.localcluster.process import tail

START_SECONDS = 30
END_SECONDS = 10
_TIMEOUT_SECONDS = 30


class PrometheusError(Exception):
    """Prometheus rejects a query, or is not running; the message has the reason."""


class Prometheus:
    """The HTTP API of a Prometheus at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(base_url=url, timeout=_TIMEOUT_SECONDS, trust_env=False)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def ready(self) -> bool:
        """Whether it answers queries."""
        try:
            return self._client.get("/-/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def query(self, expr: str, at: float) -> list[Any]:
        """Series of an instant query; a scalar is one series.

        Raises:
            PrometheusError: the query is rejected.
        """
        return _series(self._get("query", {"query": expr, "time": at}))

    def query_range(self, expr: str, start: float, end: float, step: float) -> list[Any]:
        """Series of a range query. Raises PrometheusError."""
        return _series(self._get("query_range", {"query": expr, "start": start, "end": end, "step": step}))

    def label_values(self, label: str, series: str | None) -> list[str]:
        """Values of a label, sorted; of the series that the selector `series` finds. Raises PrometheusError."""
        return sorted(self._get(f"label/{label}/values", {"match[]": series} if series else {}))

    def targets_down(self) -> dict[str, str]:
        """Errors of the last scrapes, by the target's address. Raises PrometheusError."""
        active = self._get("targets", {"state": "active"})["activeTargets"]
        return {one["scrapeUrl"]: one["lastError"] for one in active if one["health"] == "down"}

    def targets_up(self) -> int:
        """Number of targets whose last scrape worked. Raises PrometheusError."""
        return sum(one["health"] == "up" for one in self._get("targets", {"state": "active"})["activeTargets"])

    def _get(self, path: str, parameters: Mapping[str, Any]) -> Any:
        try:
            answer = self._client.get(f"/api/v1/{path}", params=parameters).json()
        except (httpx.TransportError, ValueError) as error:
            raise PrometheusError(f"Prometheus at {self.url} does not answer: {error}") from error
        if answer["status"] != "success":
            raise PrometheusError(answer["error"])
        return answer["data"]


def _series(data: Mapping[str, Any]) -> list[Any]:
    return [data["result"]] if data["resultType"] in ("scalar", "string") else list(data["result"])


@contextmanager
def started(program: Path, configure: Callable[[Path], Mapping[str, Any]]) -> Iterator[Prometheus]:
    """A Prometheus while the block runs, with its data in a temporary folder and on a free port of loopback.

    Args:
        configure: makes the configuration; gets the folder, where it may put files that the configuration names.

    Raises:
        PrometheusError: it did not start; the message has the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="inflight-prometheus-") as name:
        folder = Path(name)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(dict(configure(folder)), sort_keys=False))
        port = _free_port()
        with (folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(_command(program, folder, port), stdout=log, stderr=log, process_group=0)
            prometheus = Prometheus(f"http://127.0.0.1:{port}")
            try:
                _wait_ready(process, prometheus, folder / "prometheus.log")
                yield prometheus
            finally:
                prometheus.close()
                _end(process)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _command(program: Path, folder: Path, port: int) -> Sequence[str]:
    return [
        str(program),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.cors.origin=.*",
        "--log.level=warn",
    ]


def _wait_ready(process: subprocess.Popen[bytes], prometheus: Prometheus, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not prometheus.ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise PrometheusError(f"Prometheus has not started; its log ends with:\n{tail(log)}")
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

"""A local Prometheus process on loopback, and its HTTP API."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tools.measure.served import free_port, process, wait_ready

START_SECONDS = 30
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
        url = f"http://127.0.0.1:{(port := free_port())}"
        log = folder / "prometheus.log"
        with process(log, _command(program, folder, port)) as running:
            try:
                wait_ready(f"{url}/-/ready", {"Prometheus": (running, log)}, START_SECONDS)
            except RuntimeError as error:
                raise PrometheusError(str(error)) from None
            prometheus = Prometheus(url)
            try:
                yield prometheus
            finally:
                prometheus.close()


def _command(program: Path, folder: Path, port: int) -> Sequence[str]:
    return [
        str(program),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.cors.origin=.*",
        "--log.level=warn",
    ]

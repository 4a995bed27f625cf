"""The services of a cluster as they change: a list, then a watch, restarted after every failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from inflight_base.kube.errors import KubeApiError
from inflight_base.kube.kinds import object_path
from inflight_base.manifest.names import KIND
from inflight_kubectl.access.cluster import Cluster
from inflight_kubectl.access.resources import Service
from inflight_kubectl.output import Problem, described

WATCH_SECONDS = 10
"""Length of one watch in seconds. An API server that disappears silently is detected soon after the watch should have
ended."""

SILENCE_SECONDS = 5.0
LEAST_WATCH_SECONDS = 1.0
"""Minimum seconds between the beginnings of two watches."""

BACKOFF_SECONDS = (1.0, 2.0, 4.0)

_EXPIRED = 410


@dataclass(frozen=True, slots=True)
class View:
    """Attributes:
    services: services by namespace and name.
    at: time when the API server last answered; None before the first answer.
    problem: reason why it does not respond now; None while it does. `services` is then the last known list.
    """

    services: tuple[Service, ...] = ()
    at: datetime | None = None
    problem: str | None = None


class ServiceFeed:
    """Follows the services of `cluster.scope` in a separate thread.

    Args:
        changed: called in that thread with each new view.
    """

    def __init__(self, cluster: Cluster, changed: Callable[[View], None]) -> None:
        self._cluster = cluster
        self._changed = changed
        self._known: dict[tuple[str, str], Service] = {}
        self._view = View()
        self._stopped = threading.Event()
        self._again = threading.Event()
        self._thread = threading.Thread(target=self._run, name="services", daemon=True)

    def start(self) -> None:
        """Starts following."""
        self._thread.start()

    def stop(self) -> None:
        """Stops without waiting for a call in flight."""
        self._stopped.set()
        self._again.set()

    def retry(self) -> None:
        """Retries at once instead of after the back-off, if the API server is unreachable."""
        self._again.set()

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            try:
                version: str | None = self._list()
                failures = 0
                while version is not None and not self._stopped.is_set():
                    began = time.monotonic()
                    version = self._watch(version)
                    # Some proxies end a watch at once.
                    self._stopped.wait(max(0.0, began + LEAST_WATCH_SECONDS - time.monotonic()))
            except Exception as error:  # any error is shown in the view, which continues
                self._tell(replace(self._view, problem=described(error)))
                self._again.wait(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
                self._again.clear()
                failures += 1

    def _list(self) -> str:
        """Lists all services; returns the resourceVersion to watch from."""
        found = self._cluster.list(object_path(KIND, self._cluster.scope))
        services = [Service.of(item) for item in found["items"]]
        self._known = {service.key: service for service in services}
        self._tell_known()
        return str(found["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str | None:
        """Follows the changes after `version`; returns the version to resume from, None to list again."""
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        path = object_path(KIND, self._cluster.scope)
        try:
            with self._cluster.connection.watch(path, query, WATCH_SECONDS + SILENCE_SECONDS) as events:
                for event in events:
                    if self._stopped.is_set():
                        return None
                    version = event.version
                    if event.type == "BOOKMARK":
                        continue
                    service = Service.of(event.object)
                    if event.type == "DELETED":
                        self._known.pop(service.key, None)
                    else:
                        self._known[service.key] = service
                    self._tell_known()
        except KubeApiError as error:
            if error.status == _EXPIRED:
                return None
            raise Problem(f"the API server ended the watch: {error.message or 'without a reason'}") from error
        self._tell_known()
        return version

    def _tell_known(self) -> None:
        services = tuple(service for _, service in sorted(self._known.items()))
        self._tell(View(services, datetime.now(UTC)))

    def _tell(self, view: View) -> None:
        self._view = view
        if not self._stopped.is_set():
            self._changed(view)

"""Pictures of dashboards: a web server for the page, Chromium, and the page's report."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from deploy.dashboards.draw.front_end import FOLDER, PAGE
from tools.localcluster import ClusterError, packages
from tools.prometheus.answers import FOLDER as DASHBOARDS
from tools.prometheus.grafana import Window, panels

DRAWN = ("bargauge", "stat", "table", "timeseries")
"""Panel types of `src/panels.tsx`."""
WIDTH = 1600
SECONDS = 180


@dataclass(frozen=True, slots=True)
class Look:
    """Rendering options.

    Attributes:
        prometheus: address.
        variables: chosen values by name.
        theme: `dark` or `light`.
    """

    prometheus: str
    window: Window
    variables: Mapping[str, str] = field(default_factory=dict)
    theme: str = "dark"

    def address(self, server: str, dashboard: str) -> str:
        """URL of the page for one dashboard."""
        parameters = {
            "prometheus": self.prometheus,
            "dashboard": dashboard,
            "from": f"{self.window.start * 1000:.0f}",
            "to": f"{self.window.end * 1000:.0f}",
            "scrape": f"{self.window.scrape_seconds:g}",
            "theme": self.theme,
            **{f"var-{name}": value for name, value in self.variables.items()},
        }
        return f"{server}/index.html?{urlencode(parameters)}"


class _Files(SimpleHTTPRequestHandler):
    """The bundled page, and the dashboards below /dashboards."""

    def translate_path(self, path: str) -> str:
        local = super().translate_path(path)
        return str(DASHBOARDS / Path(local).name) if path.startswith("/dashboards/") else local

    def log_message(self, format: str, *arguments: Any) -> None:
        """Disabled: the page's own report has the errors."""


@contextmanager
def served() -> Iterator[str]:
    """Serves the page while the block runs; yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(PAGE)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def draw(browser: str, server: str, dashboard: str, look: Look, picture: Path) -> list[str]:
    """Render one dashboard; returns the problems found.

    Raises:
        ClusterError: the browser did not run.
    """
    command = [packages.require("node"), "shot.mjs", browser, look.address(server, dashboard), str(picture), str(WIDTH)]
    try:
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{browser} has not drawn {dashboard} within {SECONDS} s") from error
    if done.returncode:
        raise ClusterError(f"{browser} could not draw {dashboard}: {done.stderr.strip()[-500:]}")
    document = json.loads((DASHBOARDS / f"{dashboard}.json").read_text())
    return problems(json.loads(done.stdout), document)


def problems(report: Mapping[str, Any], dashboard: Mapping[str, Any]) -> list[str]:
    """Problems as text, from the page's report: broken and empty panels, and errors of the page itself."""
    found = [f"the page failed: {report['fatal'].splitlines()[0]}"] if report.get("fatal") else []
    found += [f"the page failed: {error}" for error in report["errors"]]
    found += ["the page was not complete in time"] if report["timedOut"] else []
    for panel in panels(dashboard):
        seen = report["panels"].get(str(panel["id"]))
        if panel["type"] not in DRAWN:
            found.append(f"panel {panel['title']!r} has the type {panel['type']}, which is not drawn")
        elif seen is None or seen["state"] not in ("Done", "Error"):
            found.append(f"panel {panel['title']!r} was not drawn")
        elif seen.get("error"):
            found.append(f"panel {panel['title']!r} is broken: {seen['error']}")
        elif not seen["frames"] and "noValue" not in panel.get("fieldConfig", {}).get("defaults", {}):
            found.append(f"panel {panel['title']!r} is empty")
    return found

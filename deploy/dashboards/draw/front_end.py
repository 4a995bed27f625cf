"""The npm part: installs packages, bundles the page, type-checks dashboards. Each only after a change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.dashboards import npm
from deploy.dashboards.typecheck import problems
from tools.localcluster import ClusterError, packages
from tools.localcluster.progress import Progress, step

FOLDER = Path(__file__).parent
PAGE = FOLDER / "build"
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")


def browser(progress: Progress) -> str:
    """Path of a Chromium, installed if missing. Raises ClusterError."""
    if not any(map(packages.find, BROWSERS)):
        packages.ensure(progress, {BROWSERS[0]: BROWSERS[0]})
    return next(path for path in map(packages.find, BROWSERS) if path)


def prepare(progress: Progress) -> None:
    """Install the packages of package-lock.json and bundle the page. Raises ClusterError."""
    packages.ensure(progress, {"node": "nodejs", "npm": "npm"})
    with step(progress, "Grafana's front-end libraries (npm; at first 770 MB, about a minute)"):
        npm.install(FOLDER)
    sources = sorted((FOLDER / "src").iterdir())
    inputs = [FOLDER / "package-lock.json", FOLDER / "build.mjs", FOLDER / "index.html", *sources]
    with npm.unless_done(FOLDER, PAGE / ".built", inputs) as todo:
        if todo:
            with step(progress, "bundling the page"):
                npm.npm(FOLDER, "run", "--silent", "build")


def check_types(dashboards: Mapping[str, Mapping[str, Any]]) -> None:
    """Compile the dashboards against @grafana/schema.

    Raises:
        ClusterError: an unknown key or value; the message has the compiler's lines.
    """
    if said := problems(dashboards):
        raise ClusterError(f"the dashboards are not of Grafana's types:\n{npm.shown(said)}")

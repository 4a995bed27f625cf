"""`make dashboards`: pictures of the dashboards, from real engines and the operator under traffic."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from deploy.dashboards.draw import front_end, pictures
from deploy.dashboards.draw.pictures import Look
from tools.localcluster import ClusterError, kubectl
from tools.localcluster.layout import REPOSITORY
from tools.localcluster.progress import Progress, step, to_stdout
from tools.prometheus import stage
from tools.prometheus.answers import load
from tools.prometheus.grafana import Window
from tools.prometheus.monitors import watching
from tools.prometheus.prometheus import PrometheusError
from tools.testbed.helm import OPERATOR_NAMESPACE
from tools.testbed.install import install

DESCRIPTION = """Draws each dashboard of the chart into docs/img/dashboard-NAME.png: brings up the local cluster with
the chart, serves two services under varied traffic, scrapes them with a real Prometheus, and draws what Prometheus has
with Grafana's own front-end libraries in headless Chromium. That is a renderer around Grafana's libraries, not Grafana:
panel types, the Prometheus data source and annotations are this project's code over Grafana's components.

Exits 1 and names the panel where one is empty or broken; its picture is written all the same."""

NAMESPACE = "dashboards"
PICTURES = REPOSITORY / "docs" / "img"
SCRAPE_SECONDS = 2.0
SETTLE_SECONDS = 15
"""From the first scrape to the traffic, so that the pictures begin with a quiet moment."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = argparse.ArgumentParser(
        prog="python -m deploy.dashboards.draw",
        description=DESCRIPTION,
        epilog='example: make dashboards ARGS="--minutes 4 --theme light --to /tmp"',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    line.add_argument("--minutes", type=float, default=8, help="length of the traffic (default 8)")
    line.add_argument("--theme", choices=("dark", "light"), default="dark", help="colours (default dark)")
    line.add_argument("--to", type=Path, default=PICTURES, help="folder of the pictures (default docs/img)")
    line.add_argument("--namespace", default=NAMESPACE, help=f"made and deleted (default {NAMESPACE})")
    line.add_argument("--as-installed", action="store_true", help="use the cluster as it is: no images built, no chart")
    return line


def client_image(progress: Progress, *, as_installed: bool) -> str:
    """The image of the traffic's pods, with the cluster and the chart there. Raises ClusterError."""
    if not as_installed:
        return install(progress)
    path = "jsonpath={.spec.template.spec.containers[0].image}"
    return kubectl("-n", OPERATOR_NAMESPACE, "get", "deployment", "inflight-operator", "-o", path)


def draw_all(
    browser: str, url: str, window: Window, dashboards: Iterable[str], options: argparse.Namespace, say: Progress
) -> list[str]:
    """Draw every dashboard from the Prometheus at `url`; returns the problems found. Raises ClusterError."""
    found = []
    options.to.mkdir(parents=True, exist_ok=True)
    with pictures.served() as server:
        for name in dashboards:
            # Fleet shows all services, the others one: only `summaries` is behind the gateway, and only in
            # engines without one are requests rejected.
            service = {"fleet": {}, "service": {"service": "summaries"}}.get(name, {"service": "chat"})
            chosen = {"namespace": options.namespace, **service}
            picture = options.to / f"dashboard-{name}.png"
            with step(say, f"drawing {picture}"):
                look = Look(url, window, chosen, options.theme)
                found += [f"{name}: {problem}" for problem in pictures.draw(browser, server, name, look, picture)]
    return found


def run(options: argparse.Namespace) -> int:
    """Exit code 0 when every panel of every picture has data."""
    say, dashboards = to_stdout(), load()
    front_end.prepare(say)
    with step(say, "checking the dashboards against the types of @grafana/schema"):
        front_end.check_types(dashboards)
    browser = front_end.browser(say)
    image = client_image(say, as_installed=options.as_installed)
    seconds = options.minutes * 60
    shown = stage.parts(seconds)
    with stage.serving(shown, options.namespace, say), watching(SCRAPE_SECONDS, [options.namespace]) as prometheus:
        begun = round(time.time())
        time.sleep(SETTLE_SECONDS)
        with step(say, f"traffic for {options.minutes:g} minutes"):
            stage.run_traffic(shown, options.namespace, seconds, say, image=image)
        window = Window(begun, round(time.time()), SCRAPE_SECONDS)
        found = draw_all(browser, prometheus.url, window, dashboards, options, say)
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0 when all pictures are complete, 1 with a sentence when not."""
    try:
        return run(parser().parse_args(arguments))
    except (ClusterError, PrometheusError, TimeoutError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tools.prometheus`: Prometheus over the running cluster, and every dashboard query run against it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tools.localcluster import ClusterError
from tools.prometheus.answers import NoChoiceError, Window, ask, load
from tools.prometheus.monitors import watching
from tools.prometheus.prometheus import PrometheusError
from tools.signals import exit_code

DESCRIPTION = """Starts a Prometheus on loopback that scrapes the operator and the engines of the running cluster, with
the labels and the rules of the chart. After --after seconds it asks every query of every panel of those dashboards of
helm/inflight/dashboards that have a service, and lists those without data. With --serve it runs until Ctrl-C instead,
for a look at its own pages."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = argparse.ArgumentParser(
        prog="python -m tools.prometheus",
        description=DESCRIPTION,
        epilog="example: python -m tools.prometheus --namespace default --service chat --after 60",
    )
    line.add_argument("--namespace", help="namespace that dashboards show (default: the first one)")
    line.add_argument("--service", help="service that dashboards show (default: the first one)")
    line.add_argument("--interval", type=float, default=2, help="seconds between two scrapes (default 2)")
    line.add_argument("--after", type=float, default=60, help="seconds of data before the queries (default 60)")
    line.add_argument("--serve", action="store_true", help="run until Ctrl-C and ask nothing")
    return line


def check(options: argparse.Namespace) -> int:
    """Exit code 0 when every query has data."""
    wanted = {name: value for name in ("namespace", "service") if (value := getattr(options, name))}
    with watching(options.interval, [options.namespace] if options.namespace else []) as prometheus:
        print(f"Prometheus: {prometheus.url}", flush=True)
        begun = time.time()
        if options.serve:
            while True:
                time.sleep(3600)
        time.sleep(options.after)
        for target, error in prometheus.targets_down().items():
            print(f"not scraped: {target}: {error}")
        problems, shown = 0, set()
        for name, dashboard in load().items():
            window = Window(begun, time.time(), options.interval)
            try:
                answers = ask(prometheus, dashboard, window, wanted)
            except NoChoiceError as nothing:
                print(f"{dashboard['title']}: not shown: {nothing}")
                continue
            shown.add(name)
            missing = [answer for answer in answers if answer.problem]
            print(f"{dashboard['title']}: {len(answers)} queries, {len(missing)} without data")
            for answer in missing:
                print(f"  {answer}")
            problems += len(missing)
    return 1 if problems or shown == {"fleet"} else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0 when every query has data, 1 when one has none or something failed."""
    options = parser().parse_args(arguments)
    return exit_code(lambda: check(options), ClusterError, PrometheusError, ValueError)


if __name__ == "__main__":
    sys.exit(main())

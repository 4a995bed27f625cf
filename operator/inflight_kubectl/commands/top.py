"""`top`: services and their pods, live."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click

from inflight_kubectl.access.cluster import Target, cluster_options
from inflight_kubectl.output import Problem, console, json_option, print_json


@click.command(
    "top",
    epilog="""\b
Examples:
  kubectl inflight top                   # services of the current namespace
  kubectl inflight top -A -w 5           # of all namespaces, every 5 seconds
  kubectl inflight top --once            # a table, for a script or a log
  kubectl inflight top --json | jq '.services[] | select(.state != "Ready")'

\b
Keys: Enter opens a service, Esc goes back, / filters, s sorts, ? lists all keys, q quits.
""",
)
@click.option(
    "-w",
    "--interval",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two updates.",
)
@click.option("--once", is_flag=True, help="Print one table and exit.")
@json_option
@cluster_options(all_namespaces=True)
def top(target: Target, interval: float, once: bool, as_json: bool) -> None:
    """Show a live view of services and their pods.

    Replicas are shown as ready/ordered, with !N for N blocked ones. A latency over its target is marked with !.
    QUEUE counts requests that wait at engines and, for services behind the gateway, those held there. A service at
    zero is Idle: its next request starts a replica; while that starts, the service is Waking. Figures of services
    come from their status, which the operator writes at least once a minute while they move; figures of pods are
    read from the engines.
    """
    cluster = target.connect()
    if once or as_json:
        from inflight_kubectl.top.summary import as_json as service_json
        from inflight_kubectl.top.summary import table

        services, now = cluster.services(), datetime.now(UTC)
        if as_json:
            print_json({"at": now, "namespace": cluster.scope, "services": [service_json(one) for one in services]})
        elif services:
            screen = console()
            screen.print(table(services, now, screen.width, namespaces=cluster.scope is None))
        else:
            click.echo(f"No InferenceServices in {_where(cluster.scope)}.", err=True)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Problem("top needs a terminal", "Use --once for a table, or --json")
    cluster.services()  # an error here prints one line before the screen opens
    from inflight_kubectl.top.app import TopApp
    from inflight_kubectl.top.source import Source

    TopApp(Source(cluster), interval).run()


def _where(scope: str | None) -> str:
    return "any namespace" if scope is None else f'namespace "{scope}"'


COMMAND = top

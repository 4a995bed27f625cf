"""`why`: the state of one service, and what would change it."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from inflight_kubectl.cluster import Target, cluster_options, service_argument
from inflight_kubectl.output import console, json_option, print_json


@click.command(
    "why",
    epilog="""\b
Examples:
  kubectl inflight why chat
  kubectl inflight why chat -n team-a
  kubectl inflight why chat --json | jq -r '.waitsFor[]'
""",
)
@service_argument
@json_option
@cluster_options()
def why(service: str, target: Target, as_json: bool) -> None:
    """Explain the state of SERVICE and the operator's decisions.

    Shows the conditions in plain words, what the service waits for (pods, nodes, images, start-up), what would make the
    operator add or remove a replica or move a limit, and the last decisions with their numbers.
    """
    from inflight_kubectl.events import pod_events
    from inflight_kubectl.why.report import explain

    cluster = target.connect()
    found = cluster.service(service)
    pods = cluster.pods(found)
    report = explain(found, pods, pod_events(cluster, found, pods), datetime.now(UTC))
    if as_json:
        print_json(report)
        return
    from inflight_kubectl.why.text import rendered

    console(most=110).print(rendered(report))


COMMAND = why

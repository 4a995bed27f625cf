"""`why`: the state of one service, and the conditions that would change it."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from inflight_kubectl.access.cluster import Target, cluster_options, service_argument
from inflight_kubectl.output import console, json_option, print_json


@click.command(
    "why",
    epilog="""\b
Examples:
  kubectl inflight why chat
  kubectl inflight why chat -n team-a
  kubectl inflight why chat --json | jq -r '.waitsFor[]'
  kubectl inflight why chat --json | jq '.gateway.picks[] | {pods, reason, heldS}'
""",
)
@service_argument
@json_option
@cluster_options()
def why(service: str, target: Target, as_json: bool) -> None:
    """Explain the state of SERVICE and the decisions of the operator and the gateway.

    Shows the conditions in plain words, what the service waits for (pods, nodes, images, start-up), what would make the
    operator add or remove a replica or move a limit, and the last decisions with their numbers. For a service
    behind the gateway also: requests that the gateway holds, and where it sent the last ones and why. For one with
    engine.kvCache.swap: what host memory and the disk hold, brought, and refused.
    """
    from inflight_kubectl.access.events import pod_events
    from inflight_kubectl.engines.engine_metrics import service_tiers
    from inflight_kubectl.engines.gateway_view import gateway_view
    from inflight_kubectl.why.report import explain

    cluster = target.connect()
    found = cluster.service(service)
    pods = cluster.pods(found)
    events, gateway = pod_events(cluster, found, pods), gateway_view(cluster, found)
    report = explain(found, pods, events, datetime.now(UTC), gateway, service_tiers(cluster, found, pods))
    if as_json:
        print_json(report)
        return
    from inflight_kubectl.why.text import rendered

    console(most=110).print(rendered(report))


COMMAND = why

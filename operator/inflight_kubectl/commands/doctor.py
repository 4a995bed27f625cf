"""`doctor`: checks, with the command that fixes each failure."""

from __future__ import annotations

import click

from inflight_kubectl.cluster import Target, cluster_options
from inflight_kubectl.output import FAILURE, console, json_option, print_json


@click.command(
    "doctor",
    epilog="""\b
Examples:
  kubectl inflight doctor                 # your namespace
  kubectl inflight doctor -A              # services of all namespaces
  kubectl inflight doctor --json | jq -r '.[] | select(.level == "fail") | .remedy'
""",
)
@json_option
@cluster_options(all_namespaces=True)
@click.pass_context
def doctor(context: click.Context, target: Target, as_json: bool) -> None:
    """Check the cluster, the installation and your permissions.

    Each line is ok, warn or fail, with the command that fixes it. The exit code is 1 when a check fails.
    """
    from inflight_kubectl.doctor.run import examine

    results = []
    screen = console()
    for result in examine(target.connect()):
        results.append(result)
        if not as_json:
            from inflight_kubectl.doctor.text import line

            screen.print(line(result))
    if as_json:
        print_json(results)
    if any(one.level == "fail" for one in results):
        context.exit(FAILURE)


COMMAND = doctor
